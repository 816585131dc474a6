"""TorchEngine: one implementation for a lone device and for FSDP2 over a mesh.

A rank's rows are cut into micro-batches, packed, and run through the model; one update is one optimizer step over all
rows of all ranks, divided once by the global count. When a loss or gradient is not finite on any rank, all ranks skip
the step together. The engine knows no algorithm: the loss comes from outside.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import PreTrainedModel

from podium.algorithms.masking import last_token_mask
from podium.config.schema import FSDPConfig, OptimConfig
from podium.engines.train import state
from podium.engines.train.base import LossFn, ModelOutputs
from podium.engines.train.blocks import activations_on_host
from podium.engines.train.culprits import Culprit
from podium.engines.train.flops import estimate_flops
from podium.engines.train.images import with_images
from podium.engines.train.meter import UpdateMeter, work_of
from podium.engines.train.micro_batches import MicroBatchLimits, cut_into_micro_batches, stretch_to
from podium.engines.train.optim import check_schedule, lr_factor, make_optimizer, set_lr
from podium.engines.train.packing import Pack, empty_pack, pack, response_tokens
from podium.engines.train.placement import PlacedModel, move_optimizer_state
from podium.engines.train.sequence_parallel import SequenceParallel
from podium.engines.train.sharding import Ranks, full_tensor, local_part
from podium.engines.train.units import Unit, make_units, rows_of
from podium.metric import Metric, Metrics, merge_metrics
from podium.models.lora import adapter_tensors, adapters_off
from podium.models.value import ValueModel
from podium.protocol import DataProto
from podium.stop_points import stop_point

logger = logging.getLogger(__name__)

COLUMNS = ("input_ids", "attention_mask", "responses", "response_mask")
"""What the engine itself reads of a batch; the loss reads what it likes."""


class TorchEngine:
    """See `TrainEngine`. `optim=None` makes an engine that only scores (a reference): no optimizer, no gradients."""

    def __init__(
        self,
        module: PreTrainedModel | ValueModel,
        *,
        optim: OptimConfig | None = None,
        total_steps: int | None = None,
        grad_clip: float | None = 1.0,
        fsdp: FSDPConfig | None = None,
        max_tokens_per_micro_batch: int = 16384,
        micro_batch_size_per_gpu: int | None = None,
        values_after: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """Takes `module` over: float32 parameters, the same on every rank, become shards or are cast to `dtype`.

        `values_after`: a value judges the text up to and with its token, as a reward model's; else the text before it.
        """
        self.module = module
        self.device = torch.device(device)
        self.dtype = dtype
        self.optim, self.total_steps, self.grad_clip = optim, total_steps, grad_clip
        self.fsdp = fsdp or FSDPConfig()
        self.values_after = values_after
        self.flops = estimate_flops(module)
        self.ranks = Ranks(self.device)
        self.sequence = self._share_rows()
        max_tokens, max_rows = max_tokens_per_micro_batch * self.sequence.budgets, micro_batch_size_per_gpu
        self.limits = MicroBatchLimits(max_tokens, max_rows and max_rows * self.sequence.budgets)
        self.placed = self._place()
        self.sharded, self.adapted = self.placed.sharded, self.placed.adapted
        self.root = self.placed.root
        self.step_count = 0
        self.culprit: Culprit | None = None
        self._offloaded = False
        self.optimizer: torch.optim.Optimizer | None = None
        if optim is not None:
            check_schedule(optim, total_steps)
            self.optimizer = self._make_optimizer(optim)

    def _share_rows(self) -> SequenceParallel:
        return SequenceParallel(self.fsdp.ulysses_sequence_parallel_size, self.ranks, self.module.config)

    def _place(self) -> PlacedModel:
        return PlacedModel(self.module, self.ranks, self.fsdp, self.dtype, trainable=self.optim is not None)

    def _make_optimizer(self, optim: OptimConfig) -> torch.optim.Optimizer:
        return make_optimizer(self.placed.trained_weights().values(), optim)

    # ---- scoring

    def log_probs(
        self, batch: DataProto, *, temperature: float, with_entropy: bool = False, with_sum_pi_squared: bool = False
    ) -> dict[str, Tensor]:
        """`log_probs`, and on request `entropys` and `sum_pi_squared`: [B, R] float32, zero where there is no token."""
        assert not isinstance(self.module, ValueModel), "a value model has no log-probs"
        names = {"log_probs": "log_probs"}
        names |= {"entropy": "entropys"} if with_entropy else {}
        names |= {"sum_pi_squared": "sum_pi_squared"} if with_sum_pi_squared else {}
        options = {"with_entropy": with_entropy, "with_sum_pi_squared": with_sum_pi_squared}
        mine = _rows(batch)
        rows, own = self.sequence.gather(mine)
        results = {ours: _grid(rows) for ours in names.values()}
        for index, outputs in self._score(rows, temperature=temperature, **options):
            for name, ours in names.items():
                results[ours][index] = outputs[name].to(results[ours])
        return {name: grid[own, : mine["responses"].shape[1]] for name, grid in results.items()}

    def values(self, batch: DataProto) -> Tensor:
        """The value before each response token is written (or with it: `values_after`), [B, R] float32."""
        assert isinstance(self.module, ValueModel), "only a value model has values"
        mine = _rows(batch)
        rows, own = self.sequence.gather(mine)
        values = _grid(rows)
        for index, outputs in self._score(rows):
            values[index] = outputs["values"].to(values)
        return values[own, : mine["responses"].shape[1]]

    def scores(self, batch: DataProto) -> Tensor:
        """A reward model's score of each row: the value at its last token, [B] float32; 0 without a response."""
        assert self.values_after, "only an engine with `values_after` scores whole responses"
        values, rows = self.values(batch), _rows(batch)
        return (values * last_token_mask(response_tokens(rows))).sum(-1)

    @torch.no_grad()
    def mean_hidden(self, batch: DataProto) -> Tensor:
        """The mean of the last hidden states over the tokens the model wrote, [B, H] float32."""
        rows, own = self.sequence.gather(_rows(batch))
        size = self.module.config.get_text_config().hidden_size
        means = torch.zeros(len(rows), size, device=rows.device)
        self._ready(train=False)
        for index in self._micro_batches(rows):
            part = rows[index]
            packed = self.sequence.split(self._pack(part, own_hidden=True))
            hidden = self.root(packed, hidden_only=True)["hidden"].float()
            sums = packed.sum_per_row(hidden, part["response_mask"].to(self.device))
            if len(index):
                means[index] = self.sequence.add_up({"sums": sums})["sums"].to(means)
        return means[own]

    @torch.no_grad()
    def _score(self, rows: TensorDict, **options: float) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """The model's outputs micro-batch by micro-batch, with the rows they belong to."""
        self._ready(train=False)
        for index in self._micro_batches(rows):
            stop_point()
            outputs = self._run(rows[index], options)
            if len(index):
                yield index, outputs

    def _run(self, part: TensorDict, options: dict[str, float]) -> dict[str, Tensor]:
        """The model's outputs for a micro-batch, [rows, R] each; one without rows still joins the collectives."""
        packed = self.sequence.split(self._pack(part, own_hidden=self.values_after))
        return self.sequence.add_up(self.root(packed, **options))

    def _pack(self, part: TensorDict, own_hidden: bool) -> Pack:
        return pack(part, self.device, own_hidden=own_hidden) if len(part) else empty_pack(self.device)

    # ---- updating

    def update(
        self,
        batch: DataProto,
        loss_fn: LossFn,
        count: float,
        *,
        temperature: float = 1.0,
        with_entropy: bool = True,
        with_sum_pi_squared: bool = False,
    ) -> Metrics:
        """One optimizer step over all rows of all ranks. `count`: this rank's share of what the loss is divided by."""
        assert self.optimizer is not None and self.optim is not None, "this engine was made without an optimizer"
        options: dict[str, float] = {"temperature": temperature, "with_sum_pi_squared": with_sum_pi_squared}
        meter = UpdateMeter(self.flops, self.device)
        rows, _ = self.sequence.gather(_rows(batch))
        total = self.ranks.sum(count)
        self._ready(train=True)
        self.optimizer.zero_grad(set_to_none=True)
        units = make_units(rows, self.limits, self.flops.cost)
        parts = self._micro_batches(rows, units)
        collected: list[Metrics] = []
        losses: list[Tensor] = []
        for number, index in enumerate(parts):
            self.placed.sync_replicas(last=number == len(parts) - 1)
            loss, metrics = self._loss(rows, index, loss_fn, options | {"with_entropy": with_entropy})
            collected.append(metrics if self.sequence.speaks else {})
            # gradients are averaged over ranks; the loss is a sum over all of them
            self.placed.backward(loss, self.ranks.size / total if total > 0 else 0.0)
            losses.append(loss.detach())  # looked at in the end: the device goes on while the next pack is made
        bad_loss = _first_bad_loss(losses)
        lr = self.optim.lr * lr_factor(self.optim, self.step_count, self.total_steps)
        report = self._step(lr, bad_loss, nothing=total <= 0)
        self.root.eval()  # a rollout engine may run this very module next
        speed = meter.metrics(work_of(rows, units, self.flops), share=1 / self.sequence.size)
        return merge_metrics(collected) | report | speed

    def _loss(
        self, rows: TensorDict, index: Tensor, loss_fn: LossFn, options: dict[str, float]
    ) -> tuple[Tensor, Metrics]:
        part = rows[index]
        with activations_on_host(self.device) if self.fsdp.activation_offload else nullcontext():
            outputs = self._run(part, options)
        if len(index) == 0:  # add nothing
            return torch.stack([out.sum() for out in outputs.values()]).sum() * 0.0, {}
        loss, metrics = loss_fn(ModelOutputs(**outputs), part.to(self.device, non_blocking=True))
        if not loss.requires_grad:  # nothing of this micro-batch counts, but the backward pass is collective
            loss = loss + torch.stack([out.sum() for out in outputs.values()]).sum() * 0.0
        return loss, metrics

    def _step(self, lr: float, bad_loss: str | None, nothing: bool) -> Metrics:
        """Clip and step, or skip; all ranks take the same way."""
        assert self.optimizer is not None
        named = self.placed.trained_weights()
        self.placed.gradients_done()
        grads = [t.grad for t in named.values() if t.grad is not None]
        norm = self.placed.gradient_norm(named) if grads else 0.0
        skip = self.ranks.max(float(bad_loss is not None or not math.isfinite(norm))) > 0
        if skip:
            self._skip(bad_loss, _first_bad_gradient(named))
        elif nothing:
            logger.warning("Step %d has no token to learn from on any rank; the weights stay.", self.step_count + 1)
        else:
            if self.grad_clip is not None and norm > self.grad_clip:
                torch._foreach_mul_([local_part(grad) for grad in grads], self.grad_clip / (norm + 1e-6))
            set_lr(self.optimizer, lr)
            self.optimizer.step()
            self.step_count += 1
            self.placed.weights_changed()
        self.optimizer.zero_grad(set_to_none=True)
        # one rank speaks for all, so that the sum over ranks counts a skipped step once
        skipped = float(skip and self.ranks.rank == 0)
        return {"grad_norm": Metric.last(norm), "lr": Metric.last(lr), "skipped_updates": Metric.sum(skipped)}

    def _skip(self, bad_loss: str | None, bad_gradient: str | None) -> None:
        """Note why this step is left out."""
        rank = self.ranks.rank
        self.culprit = Culprit(rank, bad_loss, bad_gradient)
        logger.warning("Rank %d: step %d skipped, %s is not finite.", rank, self.step_count + 1, self.culprit)

    def _micro_batches(self, rows: TensorDict, units: list[Unit] | None = None) -> list[Tensor]:
        """Row numbers of each micro-batch; as many on every rank, some perhaps empty."""
        units = make_units(rows, self.limits, self.flops.cost) if units is None else units
        lengths, costs = [unit.tokens for unit in units], [unit.cost for unit in units]
        parts = cut_into_micro_batches(lengths, self.limits, costs)
        rounds = int(self.ranks.max(len(parts)))
        parts = stretch_to(parts, rounds, lengths, self.limits, costs)
        chosen = [rows_of(units[number] for number in part) for part in parts]
        return [torch.tensor(part, dtype=torch.long, device=rows.device) for part in chosen]

    def _ready(self, train: bool) -> None:
        if self._offloaded:
            self.onload()
        if self.root.training != train:
            self.root.train(train)

    # ---- weights and state

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Full tensors under their Hugging Face names, adapters merged, one at a time, tied ones once; all ranks
        iterate."""
        self._ready(train=False)
        self.placed.reshard()
        yield from self.placed.stream(dtype)

    def unmerged(self) -> dict[str, Tensor] | None:
        """What `weights` streams, before it is gathered and merged: weights and kept buffers by their names in the
        module, live, as this rank holds them. None where only `weights` can give them."""
        self._ready(train=False)
        self.placed.reshard()
        return self.placed.unmerged()

    def adapter(self) -> Iterator[tuple[str, Tensor]]:
        """The adapter alone, named as peft does; nothing without one. All ranks iterate."""
        self._ready(train=False)
        self.placed.reshard()
        yield from adapter_tensors(self.module, self.placed.named_weights(), full_tensor)

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds: model, optimizer and step count, the live tensors themselves."""
        self._ready(train=False)
        self.placed.reshard()
        tensors = self._model_state()
        if self.optimizer is not None:
            tensors |= state.optimizer_tensors(self.optimizer, self.placed.trained_weights())
        return tensors

    def save(self, folder: Path) -> None:
        """Write `state_tensors`; any number of ranks can load it."""
        state.save_state(folder, self.state_tensors(), self.sharded)

    def load(self, folder: Path) -> None:
        """What `save` wrote. An engine without an optimizer takes the model alone."""
        self._ready(train=False)
        self.placed.reshard()
        saved = state.saved_names(folder)
        tensors = self._model_state()
        state.require_model_tensors(folder, set(tensors), saved)
        if self.optimizer is not None:
            self.optimizer.state.clear()
            if any(name.startswith(state.OPTIMIZER) for name in saved):
                state.create_optimizer_state(self.optimizer)
            tensors |= state.optimizer_tensors(self.optimizer, self.placed.trained_weights())
        state.load_state(folder, {name: tensor for name, tensor in tensors.items() if name in saved}, self.sharded)
        self.step_count = int(tensors[state.STEP_COUNT].item())
        self.placed.weights_changed()

    def _model_state(self) -> dict[str, Tensor]:
        named = {f"{state.MODEL}{name}": tensor.detach() for name, tensor in self.placed.saved_weights().items()}
        return named | {state.STEP_COUNT: torch.tensor(self.step_count)}

    # ---- memory

    def offload(self, keep_weights: bool = False) -> None:
        """The engine rests: move to host memory what `fsdp.param_offload` and `optimizer_offload` name, until its next
        use. `keep_weights`: somebody else computes with the module meanwhile."""
        weights = self.fsdp.param_offload and not keep_weights
        if weights or self.fsdp.optimizer_offload:
            self._offloaded = True
            self._move(torch.device("cpu"), weights)

    def onload(self) -> None:
        self._offloaded = False
        self._move(self.device, self.fsdp.param_offload)

    def _move(self, device: torch.device, weights: bool) -> None:
        if self.device.type == "cpu":
            return
        if weights:
            self.placed.move(device)
        if self.fsdp.optimizer_offload and self.optimizer is not None:
            move_optimizer_state(self.optimizer, device)
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, the engine computes with the weights the run began from; without adapters these are its own."""
        with adapters_off(self.module):
            yield


def _rows(batch: DataProto) -> TensorDict:
    """The tensor columns; a batch without any has no rows."""
    if batch.batch is not None:
        return with_images(batch.batch, batch)
    nothing = torch.zeros(0, 0, dtype=torch.long)
    return TensorDict(dict.fromkeys(COLUMNS, nothing), batch_size=[0])


def _grid(rows: TensorDict) -> Tensor:
    return torch.zeros(rows["responses"].shape, dtype=torch.float32, device=rows["responses"].device)


def _first_bad_loss(losses: list[Tensor]) -> str | None:
    finite = torch.stack(losses).isfinite().tolist() if losses else []
    return f"the loss of micro-batch {finite.index(False) + 1} of {len(finite)}" if False in finite else None


def _first_bad_gradient(named: dict[str, Tensor]) -> str | None:
    for name, tensor in named.items():
        if tensor.grad is not None and not bool(torch.isfinite(local_part(tensor.grad)).all()):
            return f"the gradient of {name}"
    return None
