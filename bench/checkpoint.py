"""How long a save holds the training: written at once, and in the background.

    python bench/checkpoint.py [--hidden 768] [--layers 12] [--saves 3] [--device cuda]

Makes a model with its optimizer state, saves it through the worker's own path, and prints how long the caller waited.
In the background a thread copies the tensors while the next step generates; only an update would have to wait for that
copy. The first such save also makes the host buffers; the figures are of the later ones.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from podium.checkpoint.export import export_hf
from podium.checkpoint.store import CheckpointStore
from podium.config.schema import OptimConfig
from podium.engines.train.state import create_optimizer_state
from podium.engines.train.torch import TorchEngine
from podium.models.load import load_tokenizer
from podium.workers.saving import CheckpointWriter


def make_engine(hidden: int, layers: int, device: str) -> TorchEngine:
    config = Qwen2Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=4 * hidden,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        vocab_size=32000,
    )
    engine = TorchEngine(Qwen2ForCausalLM(config).to(device), optim=OptimConfig(), total_steps=10)
    assert engine.optimizer is not None
    create_optimizer_state(engine.optimizer)
    return engine


def save(
    engine: TorchEngine, writer: CheckpointWriter, store: CheckpointStore, step: int, background: bool
) -> tuple[float, float]:
    """Seconds until the training could go on, and until an update could follow."""
    tokenizer = load_tokenizer("builtin:tiny", False)
    if engine.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    staging = store.stage(step)
    full = dict(engine.weights(dtype=torch.float32))

    def export(weights: Mapping[str, Tensor]) -> None:
        export_hf(weights.items(), engine.module.config, tokenizer, staging / "hf")

    writer.save(engine, staging / "actor", background, full, export)
    if not background:
        store.publish(staging, step, {})
    held_s = time.perf_counter() - start
    writer.settle()
    settled_s = time.perf_counter() - start
    while not writer.written():
        time.sleep(0.01)
    if background:
        store.publish(staging, step, {})
    return held_s, settled_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", help="where to write (default: the folder for temporary files)")
    arguments = parser.parse_args()
    engine = make_engine(arguments.hidden, arguments.layers, arguments.device)
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        store, writer = CheckpointStore(folder), CheckpointWriter()
        held = {
            mode: [save(engine, writer, store, step, mode) for step in range(1, arguments.saves + 2)]
            for mode in (False, True)
        }
        size = sum(path.stat().st_size for path in store.steps()[1].rglob("*") if path.is_file())
    finally:
        shutil.rmtree(folder)
    parameters = sum(parameter.numel() for parameter in engine.module.parameters())
    sync_s, async_s = (statistics.median(seconds for seconds, _ in held[mode][1:]) for mode in (False, True))
    settled_s = statistics.median(seconds for _, seconds in held[True][1:])
    print(
        f"{parameters / 1e6:.0f} M parameters, {size / 2**20:.0f} MiB a checkpoint, {torch.get_num_threads()} threads"
    )
    print(f"synchronous save holds the step for {sync_s:.3f} s, asynchronous for {async_s:.3f} s")
    print(f"ratio: {100 * async_s / sync_s:.2f} %")
    print(f"an update that came at once, without any generation before it, would wait {settled_s:.3f} s for the copy")


if __name__ == "__main__":
    main()
