"""`podium retrieve`: serve a corpus to search runs until interrupted."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from podium.errors import ConfigError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
The corpus is a jsonl file of {"id", "title", "text"} or {"id", "contents"}, or
task:search, the built-in one. Search is BM25, or by meaning with --dense.

examples:
  podium retrieve --corpus wiki.jsonl
  podium retrieve --corpus wiki.jsonl --port 8000 --dense ./e5-base
  podium train search retriever.url=http://127.0.0.1:8000/retrieve

POST /retrieve {"queries": [...], "topk": 3, "return_scores": true} is answered
with {"result": [[{"document": {...}, "score": 1.5}, ...], ...]}. GET /health
says how many documents there are. It listens on this machine only unless
--host says otherwise, and asks for no password.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "retrieve",
        help="serve documents to search runs",
        description="Serve documents to search runs.",
        epilog=EPILOG,
        usage="podium retrieve --corpus FILE [--topk K] [--dense FOLDER] [--host HOST] [--port PORT]",
    )
    parser.add_argument("words", nargs="*", metavar="corpus", help="the corpus, as with --corpus")
    parser.add_argument("--corpus", help="a jsonl file of documents, or task:search")
    parser.add_argument("--topk", type=int, default=3, help="documents for requests that do not say (default: 3)")
    parser.add_argument("--dense", metavar="FOLDER", help="search by meaning with this sentence-transformers folder")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="the port (default: 8000; 0: any free one)")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    corpora = [*([arguments.corpus] if arguments.corpus else []), *arguments.words]
    if len(corpora) != 1:
        raise ConfigError(f"podium retrieve needs one corpus, {len(corpora)} were given; write --corpus file.jsonl")
    if not 0 <= arguments.port <= 65535:
        raise ConfigError(f"--port={arguments.port} is not a port; allowed are 0 (any free one) to 65535")
    if arguments.topk < 1:
        raise ConfigError(f"--topk={arguments.topk} must be at least 1")
    from podium.retrieval.corpus import read_corpus
    from podium.retrieval.index import make_index
    from podium.retrieval.server import bind, serve

    listener = bind(arguments.host, arguments.port)  # a port that is taken is known before the index is built
    start = time.perf_counter()
    index = make_index(read_corpus(corpora[0]), arguments.dense)
    host, port = listener.getsockname()[:2]
    seconds = time.perf_counter() - start
    sys.stdout.write(f"podium retrieve: {len(index.documents):,} documents, indexed in {seconds:.1f} s\n")
    sys.stdout.write(f"podium retrieve: http://{f'[{host}]' if ':' in host else host}:{port}/retrieve\n")
    sys.stdout.flush()
    serve(index, listener, arguments.topk)
    return 0
