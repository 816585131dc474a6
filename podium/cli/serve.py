"""`podium serve`: a trained model behind OpenAI's and SGLang's HTTP interfaces."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from podium.errors import ConfigError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
The word is a run folder, a checkpoint, a Hugging Face folder or name, or
builtin:tiny. Answers /v1/models, /v1/completions, /v1/chat/completions (also
streamed) and SGLang's /generate, with the native rollout engine.

examples:
  podium serve runs/podium/quickstart
  podium serve runs/podium/quickstart --step 40 --port 8000
  podium serve builtin:tiny --host 0.0.0.0    for other machines, with a key

Bound to anything but loopback it makes a key and prints it. The key travels
unencrypted: prefer `ssh -L 8000:localhost:8000 host`.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "serve",
        help="a trained model behind an OpenAI-compatible server",
        description="Serve a trained model over HTTP.",
        epilog=EPILOG,
        usage="podium serve MODEL [--step N] [--name NAME] [--host HOST] [--port PORT] [--key KEY]",
    )
    parser.add_argument("words", nargs="*", metavar="model", help="a run, a checkpoint or a model folder")
    parser.add_argument("--step", type=int, help="the checkpoint's step (default: the newest complete one)")
    parser.add_argument("--name", help="the model's name in requests (default: the word)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="the port; 0: any free one (default: 8000)")
    parser.add_argument("--key", help="the key that requests must carry (default: none on loopback, else made up)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="the number type")
    parser.add_argument("--max-num-seqs", type=int, default=64, help="responses written at once (default: 64)")
    parser.add_argument("--kv-cache-gb", type=float, default=2.0, help="size limit of the KV cache on a CPU")
    parser.add_argument("--allow-updates", action="store_true", help="let a trainer publish weights to this server")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if len(arguments.words) != 1:
        raise ConfigError(f"podium serve takes one model, not {len(arguments.words)}; for example: builtin:tiny")
    import torch

    from podium.serving.server import Served, find_model, listen, load_generator, make_app
    from podium.serving.server import run as serve

    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device=cuda, but torch sees no GPU here; leave it out or use cpu")
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    served = Served(
        model=find_model(arguments.words[0], arguments.step),
        name=arguments.name or arguments.words[0],
        dtype=arguments.dtype,
        device=automatic if arguments.device == "auto" else arguments.device,
        max_num_seqs=arguments.max_num_seqs,
        kv_cache_gb=arguments.kv_cache_gb,
        allow_updates=arguments.allow_updates,
    )
    listening = listen(arguments.host, arguments.port, arguments.key)
    app = make_app(load_generator(served), served.model, listening.key, served.allow_updates)
    sys.stdout.write(f"podium serve: {served.name} at {listening.url}/v1\n")
    if listening.key and arguments.key is None:
        sys.stdout.write(f"Requests need the key {listening.key}\n")
    sys.stdout.flush()
    serve(app, listening)
    return 0
