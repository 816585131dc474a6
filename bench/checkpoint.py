"""How long a save holds the training: written at once, and in the background.

    python bench/checkpoint.py [--hidden 768] [--layers 12] [--saves 3] [--device cuda]
    python bench/checkpoint.py --lora 16                    adapters: the merged model is written too
    python bench/checkpoint.py --ranks 2 --device cpu       FSDP: the ranks write together

Makes a model with its optimizer state, saves it through the worker's own path, and prints how long the caller waited.
In the background a thread copies the tensors while the next step generates; only an update would have to wait for that
copy. The first such save also makes the host buffers; the figures are of the later ones. The two ways take turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import Qwen2Config, Qwen2ForCausalLM

from podium.checkpoint.store import CheckpointStore
from podium.config.schema import ModelConfig, OptimConfig
from podium.engines.train.state import create_optimizer_state
from podium.engines.train.torch import TorchEngine
from podium.models.load import load_tokenizer, prepare
from podium.models.lora import add_lora
from podium.workers.model_files import ModelFiles
from podium.workers.saving import CheckpointWriter


def make_engine(hidden: int, layers: int, device: str, lora_rank: int) -> TorchEngine:
    config = Qwen2Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=4 * hidden,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        vocab_size=32000,
    )
    torch.manual_seed(0)  # ranks begin alike
    module = Qwen2ForCausalLM(config).to(device)
    prepare(module)
    add_lora(module, ModelConfig(lora_rank=lora_rank))
    engine = TorchEngine(module, optim=OptimConfig(), total_steps=10)
    assert engine.optimizer is not None
    create_optimizer_state(engine.optimizer)
    return engine


def save(
    engine: TorchEngine, writer: CheckpointWriter, store: CheckpointStore, step: int, background: bool
) -> tuple[float, float]:
    """Seconds until the training could go on, and until an update could follow."""
    tokenizer = load_tokenizer("builtin:tiny", False)
    staging = store.folder / f".staging_global_step_{step}_bench"  # one name for all ranks
    staging.mkdir(parents=True, exist_ok=True)
    wait_for_all(engine)
    start = time.perf_counter()
    writer.save(engine, staging / "actor", background, ModelFiles.of(engine, tokenizer, staging))
    if not background and engine.ranks.rank == 0:
        store.publish(staging, step, {})
    held_s = time.perf_counter() - start
    writer.settle()
    settled_s = time.perf_counter() - start
    while not writer.written():
        time.sleep(0.01)
    wait_for_all(engine)
    if background and engine.ranks.rank == 0:
        store.publish(staging, step, {})
    return held_s, settled_s


def wait_for_all(engine: TorchEngine) -> None:
    if engine.device.type == "cuda":
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()


def measure(rank: int, arguments: argparse.Namespace, folder: Path) -> None:
    if arguments.ranks > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        rendezvous = f"file://{folder}/rendezvous"
        dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=arguments.ranks)
    engine = make_engine(arguments.hidden, arguments.layers, arguments.device, arguments.lora)
    store, writer = CheckpointStore(folder / "checkpoints"), CheckpointWriter()
    turns = [(step, bool(step % 2)) for step in range(2 * arguments.saves + 2)]
    held = {step: save(engine, writer, store, step, background) for step, background in turns}
    if rank == 0:
        report(engine, store, held)
    if dist.is_initialized():
        dist.destroy_process_group()


def report(engine: TorchEngine, store: CheckpointStore, held: dict[int, tuple[float, float]]) -> None:
    later = {mode: [times for step, times in held.items() if step > 1 and step % 2 == mode] for mode in (False, True)}
    sync_s, async_s = (statistics.median(seconds for seconds, _ in later[mode]) for mode in (False, True))
    settled_s = statistics.median(seconds for _, seconds in later[True])
    ratios = sorted(after[0] / before[0] for before, after in zip(later[False], later[True], strict=True))
    size = sum(path.stat().st_size for path in store.steps()[1].rglob("*") if path.is_file())
    parameters = sum(parameter.numel() for parameter in engine.module.parameters())
    print(f"{parameters / 1e6:.0f} M parameters, {engine.ranks.size} ranks, {size / 2**20:.0f} MiB a checkpoint")
    print(f"synchronous save holds the step for {sync_s:.3f} s, asynchronous for {async_s:.3f} s")
    print(f"ratio: {100 * async_s / sync_s:.2f} % ({100 * ratios[0]:.2f} to {100 * ratios[-1]:.2f} of the pairs)")
    print(f"an update that came at once, without any generation before it, would wait {settled_s:.3f} s for the copy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters; 0: none")
    parser.add_argument("--ranks", type=int, default=1, help="processes on CPUs that share the model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", help="where to write (default: the folder for temporary files)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        if arguments.ranks > 1:
            mp.spawn(measure, (arguments, folder), arguments.ranks)
        else:
            measure(0, arguments, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
