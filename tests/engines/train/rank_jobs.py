"""Work that several ranks do together, and a runner for it: one process per rank, gloo, one thread each."""

from __future__ import annotations

import os
import resource
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from train_cases import make_batch, make_model, policy_loss, tokens, value_loss

from podium.config.schema import FSDPConfig, ModelConfig, OptimConfig
from podium.engines.train.base import ModelOutputs
from podium.engines.train.sharding import local_part
from podium.engines.train.torch import TorchEngine
from podium.engines.train.whole import Gatherer
from podium.metric import Metrics
from podium.models.load import load_causal_lm, load_tokenizer
from podium.models.lora import add_lora
from podium.models.streamed import WeightFiles
from podium.models.value import ValueModel
from podium.protocol import DataProto
from podium.workers.model_files import ModelFiles
from podium.workers.saving import CheckpointWriter

Job = Callable[..., object]


def run_ranks(job: Job, num_ranks: int, folder: Path, *args: object) -> list[object]:
    """`job(*args)` on every rank; what each rank returned."""
    folder.mkdir(parents=True, exist_ok=True)
    # torch is imported once, not once per rank (the server does not see the tests' own folder)
    mp.get_context("forkserver").set_forkserver_preload(["podium.engines.train.torch", "transformers.models.qwen2"])
    mp.start_processes(_rank, (job, num_ranks, folder, args), num_ranks, start_method="forkserver")
    return [torch.load(folder / f"result_{rank}.pt", weights_only=False) for rank in range(num_ranks)]


def _rank(rank: int, job: Job, num_ranks: int, folder: Path, args: tuple[object, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    warnings.simplefilter("error", DeprecationWarning)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=num_ranks)
    torch.save(job(*args), folder / f"result_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def split(batch: DataProto, sizes: list[int]) -> DataProto:
    """This rank's rows, when rank r has sizes[r] of them."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    return batch.slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def make_engine(seed: int = 0, **changes: object) -> TorchEngine:
    model = make_model("qwen2", seed, gradient_checkpointing=bool(changes.pop("gradient_checkpointing", False)))
    return TorchEngine(model, **({"optim": OptimConfig(lr=1e-3)} | changes))  # type: ignore[arg-type]


def gathered(engine: TorchEngine) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in engine.weights()}


def train(sizes: list[int], steps: int, changes: dict[str, object]) -> tuple[dict[str, Tensor], Metrics]:
    """Some steps over 8 rows; the weights, and the last metrics."""
    engine = make_engine(**({"max_tokens_per_micro_batch": 30} | changes))
    rows = split(make_batch(8), sizes)
    for _ in range(steps):
        metrics = engine.update(rows, policy_loss, tokens(rows), temperature=0.8)
    return gathered(engine), metrics


def score(sizes: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    rows = split(make_batch(8), sizes)
    engine = make_engine(max_tokens_per_micro_batch=30)
    value = ValueModel(make_model("qwen2").base_model)
    torch.manual_seed(0)
    torch.nn.init.normal_(value.value_head.weight)
    critic = TorchEngine(value, optim=OptimConfig(lr=1e-3))
    critic.update(rows, value_loss, tokens(rows))
    return (
        engine.log_probs(rows, temperature=1.0)["log_probs"],
        critic.values(rows),
        engine.mean_hidden(rows),
    )


def train_in_half(sizes: list[int]) -> tuple[dict[str, Tensor], Tensor]:
    """One step too small for bfloat16; the change of each float32 shard, and log-probs in half precision."""
    engine = make_engine(dtype=torch.bfloat16, optim=OptimConfig(lr=1e-5))
    rows = split(make_batch(8), sizes)
    scores = engine.log_probs(rows, temperature=1.0)["log_probs"]
    before = gathered(engine)
    assert {tensor.dtype for tensor in before.values()} == {torch.float32}, "the shards, not what was gathered of them"
    engine.update(rows, policy_loss, tokens(rows))
    return {name: tensor - before[name] for name, tensor in gathered(engine).items()}, scores


def skip_one(sizes: list[int]) -> tuple[dict[str, Tensor], dict[str, Tensor], Metrics]:
    """The last rank's loss is not a number: weights before and after, and metrics."""
    last = dist.get_world_size() - 1

    def poisoned(outputs: ModelOutputs, rows: TensorDict) -> tuple[Tensor, Metrics]:
        loss, metrics = policy_loss(outputs, rows)
        return loss * (float("nan") if dist.get_rank() == last else 1.0), metrics

    engine = make_engine()
    rows = split(make_batch(8), sizes)
    before = gathered(engine)
    metrics = engine.update(rows, poisoned, tokens(rows))
    assert engine.step_count == 0
    return before, gathered(engine), metrics


def train_and_save(sizes: list[int], folder: Path) -> dict[str, Tensor]:
    """Two steps, save, two more."""
    engine = make_engine()
    rows = split(make_batch(8), sizes)
    for step in range(4):
        if step == 2:
            engine.save(folder)
        engine.update(rows, policy_loss, tokens(rows))
    return gathered(engine)


def load_and_train(sizes: list[int], folder: Path) -> dict[str, Tensor]:
    engine = make_engine(seed=7)
    engine.load(folder)
    assert engine.step_count == 2
    rows = split(make_batch(8), sizes)
    for _ in range(2):
        engine.update(rows, policy_loss, tokens(rows))
    return gathered(engine)


def many(cases: list[tuple[Job, tuple[object, ...]]]) -> list[object]:
    """Several jobs in one start of the ranks."""
    return [job(*args) for job, args in cases]


SHARDED_FORMS: dict[str, dict[str, object]] = {
    "plain": {},
    "one row at a time": {"micro_batch_size_per_gpu": 1},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "parameters kept together": {"fsdp": FSDPConfig(reshard_after_forward=False)},
    "replicas": {"fsdp": FSDPConfig(fsdp_size=1)},
    "prefetch": {"fsdp": FSDPConfig(forward_prefetch=True)},
}

LORA: dict[str, object] = {"lora_rank": 4, "lora_alpha": 8.0}


def lora_engine(
    family: str = "qwen2", lora_seed: int = 0, engine: dict[str, object] | None = None, **settings: object
) -> TorchEngine:
    """An engine that trains adapters in the model that `make_model` makes."""
    module = make_model(family)
    add_lora(module, ModelConfig(**(LORA | settings)), seed=lora_seed)  # type: ignore[arg-type]
    chosen = {"optim": OptimConfig(lr=1e-2), "max_tokens_per_micro_batch": 30} | (engine or {})
    return TorchEngine(module, **chosen)  # type: ignore[arg-type]


def train_lora(
    sizes: list[int], form: dict[str, object], engine: dict[str, object] | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor, tuple[set[torch.dtype], set[torch.dtype]]]:
    """Two steps: merged weights, the adapter, the reference's log-probs, the types of frozen and trained weights."""
    trainer = lora_engine(engine={"optim": OptimConfig(lr=1e-3)} | (engine or {}), **form)
    rows = split(make_batch(8), sizes)
    for _ in range(2):
        trainer.update(rows, policy_loss, tokens(rows))
    with trainer.reference():
        scores = trainer.log_probs(rows, temperature=1.0)["log_probs"]
    named = trainer.placed.named_weights().values()
    types = tuple({t.dtype for t in named if t.requires_grad is trained} for trained in (False, True))
    return gathered(trainer), {n: t.clone() for n, t in trainer.adapter()}, scores, types  # type: ignore[return-value]


def lora_and_save(sizes: list[int], folder: Path) -> dict[str, Tensor]:
    engine = lora_engine()
    rows = split(make_batch(8), sizes)
    for step in range(3):
        if step == 2:
            engine.save(folder)
        engine.update(rows, policy_loss, tokens(rows))
    return gathered(engine)


def lora_from_saved(sizes: list[int], folder: Path) -> dict[str, Tensor]:
    engine = lora_engine(lora_seed=5)
    engine.load(folder)
    rows = split(make_batch(8), sizes)
    engine.update(rows, policy_loss, tokens(rows))
    return gathered(engine)


def save_model_files(folder: Path, adapted: bool, fsdp_size: int, full_disk: bool) -> tuple[dict[str, Tensor], str]:
    """Saves in the background and changes the weights meanwhile; the weights at the save, and what went wrong."""
    changes: dict[str, object] = {"fsdp": FSDPConfig(fsdp_size=fsdp_size)}
    engine = lora_engine(engine=changes) if adapted else make_engine(**changes)
    if full_disk and dist.get_rank() == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    rows = split(make_batch(8), [8 // dist.get_world_size()] * dist.get_world_size())
    engine.update(rows, policy_loss, tokens(rows))
    expected = gathered(engine) | {name: tensor.clone() for name, tensor in engine.adapter()}
    writer, tokenizer = CheckpointWriter(), load_tokenizer("builtin:tiny", False)
    writer.save(engine, folder / "actor", True, ModelFiles.of(engine, tokenizer, folder))
    writer.settle()
    engine.update(rows, policy_loss, tokens(rows))
    try:
        while not writer.written():
            time.sleep(0.02)
    except Exception as error:  # noqa: BLE001 (handed to the test)
        return expected, f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return expected, ""


def write_in_a_forward_pass(folder: Path) -> dict[str, Tensor]:
    """Writes an adapter while the blocks' parameters are gathered and let go of, as a scoring pass does; what it is."""
    engine = lora_engine()
    parts = [part for part in engine.root.modules() if isinstance(part, FSDPModule)]

    class Busy(Gatherer):
        calls = 0

        def __call__(self, tensor: Tensor) -> Tensor:
            self.calls += 1
            for part in parts:
                part.reshard() if self.calls % 2 else part.unshard()
            return super().__call__(tensor)

    expected = {name: tensor.clone() for name, tensor in engine.adapter()}
    model = ModelFiles.of(engine, load_tokenizer("builtin:tiny", False), folder)
    model.take(engine.state_tensors())
    model.write(Busy(dist.group.WORLD))
    return expected


def ulysses(sizes: list[int], size: int, shape: dict[str, object], checkpointing: bool) -> dict[str, object]:
    """Sequences shared by `size` ranks: scores, and loss, gradients (as plain descent) and metrics of an update."""
    fsdp = FSDPConfig(ulysses_sequence_parallel_size=size)
    rows = split(make_batch(8), sizes)

    def engine(module: object) -> TorchEngine:
        descent = OptimConfig(name="SGD", lr=1.0, weight_decay=0.0)
        return TorchEngine(module, optim=descent, fsdp=fsdp, max_tokens_per_micro_batch=24)  # type: ignore[arg-type]

    policy = engine(make_model("qwen2", gradient_checkpointing=checkpointing, **shape))
    critic = engine(ValueModel(make_model("qwen2", **shape).base_model))
    torch.nn.init.ones_(critic.module.value_head.bias)  # type: ignore[union-attr,arg-type]
    scores = policy.log_probs(rows, temperature=0.8, with_entropy=True)
    metrics = policy.update(rows, policy_loss, tokens(rows), temperature=0.8)
    more = critic.update(rows, value_loss, tokens(rows))
    return {
        "scores": scores,
        "values": critic.values(rows),
        "hidden": policy.mean_hidden(rows),
        "metrics": metrics | {"vf_loss": more["vf_loss"]} if "vf_loss" in more else metrics,
        "weights": gathered(policy),
        "critic": gathered(critic),
    }


def train_streamed(sizes: list[int], folder: Path, lora_rank: int) -> tuple[dict[str, Tensor], int, int]:
    """One step of a model whose values are read while it is sharded: weights, elements read, elements kept."""
    held: list[int] = []
    read = WeightFiles.read

    def counted(files: WeightFiles, name: str) -> Tensor:
        tensor = read(files, name)
        held.append(tensor.numel())
        return tensor

    WeightFiles.read = counted  # type: ignore[method-assign]
    config = ModelConfig(path=str(folder), lora_rank=lora_rank)
    module = load_causal_lm(config, empty=True)
    assert all(parameter.is_meta for parameter in module.parameters())
    add_lora(module, config)
    engine = TorchEngine(module, optim=OptimConfig(lr=1e-3))
    WeightFiles.read = read  # type: ignore[method-assign]
    rows = split(make_batch(8), sizes)
    engine.update(rows, policy_loss, tokens(rows))
    return gathered(engine), sum(held), sum(local_part(p).numel() for p in engine.module.parameters())
