"""Workers that learn from finished responses: SFTWorker (a policy) and RewardTrainingWorker (a reward model).

They hold one train engine each and state its loss as a sum; the engine divides. Their methods are dispatched like those
of every other worker, so a group of several is a matter of the controller alone. They read no file of data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch.nn.functional as F
from tensordict import TensorDict
from torch import Tensor

from podium.algorithms import last_token_mask
from podium.checkpoint import rng
from podium.config.schema_sft import RewardTrainingConfig, SupervisedConfig
from podium.engines.train.base import ModelOutputs
from podium.engines.train.culprits import Culprit
from podium.engines.train.packing import response_tokens
from podium.metric import Metric, Metrics
from podium.models.load import load_causal_lm, load_tokenizer, resolve_dtype
from podium.models.lora import add_lora
from podium.models.value import load_value_model
from podium.protocol import DataProto
from podium.single_controller.dispatch import Dispatch, register
from podium.single_controller.worker import Worker
from podium.workers.engines import make_train_engine
from podium.workers.model_files import ModelFiles
from podium.workers.optimization import full_names
from podium.workers.saving import CheckpointWriter, load_rng, save_rng


class SupervisedWorker(Worker):
    """What both have: one model, one engine, checkpoints."""

    name: ClassVar[str]
    """The prefix of its metrics and its folder in a checkpoint."""
    scores_responses: ClassVar[bool] = False

    def __init__(self, config: SupervisedConfig, total_steps: int) -> None:
        self.config, self.total_steps = config, total_steps
        self.writer = CheckpointWriter()

    def _load_model(self) -> Any:
        raise NotImplementedError

    @register(Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        config = self.config
        self.setup_distributed(config.trainer.worker_start_timeout_s)
        rng.seed(config.trainer.seed + self.rank)
        self.tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
        module = self._load_model()
        add_lora(module, config.model)
        self.engine = make_train_engine(
            "fsdp",
            module,
            fsdp=config.fsdp,
            optim=config.optim,
            total_steps=self.total_steps,
            max_tokens_per_micro_batch=config.max_tokens_per_micro_batch,
            grad_clip=config.grad_clip,
            values_after=self.scores_responses,
            dtype=resolve_dtype(config.model.dtype, self.device),
            device=self.device,
        )

    @register(Dispatch.DP_COMPUTE_METRIC)
    def update(self, data: DataProto) -> Metrics:
        """One optimizer step over all rows."""
        self.writer.settle()
        metrics = self.engine.update(data, self._loss, self._count(data), with_entropy=False)
        return full_names(metrics, self.name)

    @register(Dispatch.ONE_TO_ALL)
    def why_skipped(self) -> Culprit | None:
        """What was not finite on this rank when an update was last left out."""
        return self.engine.culprit

    @register(Dispatch.DP_COMPUTE_METRIC)
    def evaluate(self, data: DataProto) -> Metrics:
        """The metrics of the loss without a step."""
        raise NotImplementedError

    def _count(self, data: DataProto) -> float:
        raise NotImplementedError

    def _loss(self, outputs: ModelOutputs, rows: TensorDict) -> tuple[Tensor, Metrics]:
        raise NotImplementedError

    @register(Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, folder: str, background: bool = False) -> None:
        """Write state, model and random states; in the background, `checkpoint_written` tells when it is done."""
        target = Path(folder)
        model = ModelFiles.of(self.engine, self.tokenizer, target)
        save_rng(target, self.rank)
        self.writer.save(self.engine, target / self.name, background, model)

    @register(Dispatch.ONE_TO_ALL)
    def checkpoint_written(self) -> bool:
        """Whether the save in the background is done; raises what it raised."""
        return self.writer.written()

    @register(Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, folder: str) -> None:
        self.writer.settle()
        self.engine.load(Path(folder) / self.name)
        load_rng(Path(folder), self.rank)


class SFTWorker(SupervisedWorker):
    """Maximum likelihood of the responses, averaged over their tokens."""

    name = "sft"

    def _load_model(self) -> Any:
        return load_causal_lm(self.config.model, device=self.device)

    def _count(self, data: DataProto) -> float:
        return float(data.tensors()["response_mask"].sum())

    def _loss(self, outputs: ModelOutputs, rows: TensorDict) -> tuple[Tensor, Metrics]:
        assert outputs.log_probs is not None
        loss = -(outputs.log_probs * rows["response_mask"]).sum()
        return loss, self._metrics(loss, rows["response_mask"])

    @register(Dispatch.DP_COMPUTE_METRIC)
    def evaluate(self, data: DataProto) -> Metrics:
        mask = data.tensors()["response_mask"]
        return self._metrics(-(self.engine.log_probs(data, temperature=1.0)["log_probs"] * mask).sum(), mask)

    def _metrics(self, loss: Tensor, mask: Tensor) -> Metrics:
        return {"sft/loss": Metric.mean(float(loss.detach()), float(mask.sum()))}


class RewardTrainingWorker(SupervisedWorker):
    """Bradley and Terry's model: −log σ(chosen − rejected − margin), averaged over pairs.

    Rows come in pairs of one `unit`, the chosen one first; the engine keeps a unit in one micro-batch.
    """

    name = "rm"
    scores_responses = True
    config: RewardTrainingConfig

    def _load_model(self) -> Any:
        return load_value_model(self.config.model, device=self.device)

    def _count(self, data: DataProto) -> float:
        return len(data) / 2

    def _loss(self, outputs: ModelOutputs, rows: TensorDict) -> tuple[Tensor, Metrics]:
        assert outputs.values is not None
        return self._pair_loss((outputs.values * last_token_mask(response_tokens(rows))).sum(-1), rows)

    @register(Dispatch.DP_COMPUTE_METRIC)
    def evaluate(self, data: DataProto) -> Metrics:
        return self._pair_loss(self.engine.scores(data), data.tensors())[1]

    def _pair_loss(self, scores: Tensor, rows: Any) -> tuple[Tensor, Metrics]:
        order = (rows["unit"] * 2 + (~rows["is_chosen"]).long()).argsort()
        chosen, rejected = scores[order].reshape(len(order) // 2, 2).unbind(1)
        margin = rows["margin"][order][::2]
        losses = -F.logsigmoid(chosen - rejected - margin)
        loss = losses.sum() + self.config.center_coef * (chosen + rejected).square().sum()
        pairs, gap = float(len(chosen)), (chosen - rejected).detach()
        right = (gap > 0).float() + 0.5 * (gap == 0).float()  # a tie is half right, as a coin would be
        metrics = {
            "rm/loss": Metric.mean(float(losses.detach().sum()), pairs),
            "rm/accuracy": Metric.mean(float(right.sum()), pairs),
            "rm/gap": Metric.mean(float(gap.sum()), pairs),
            "rm/score_mean": Metric.mean(float((chosen + rejected).detach().sum()) / 2, pairs),
        }
        return loss, metrics
