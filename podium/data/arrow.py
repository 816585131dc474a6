"""Tables that stay on disk: Arrow files mapped into memory, one row becoming Python objects at a time.

A large parquet file is copied once, batch by batch, into an Arrow file in a cache folder; later starts map that file.
A folder saved by the `datasets` library is Arrow already. What is mapped counts as the system's file cache, not as this
process's own memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from pyarrow import ipc
from pyarrow.lib import ArrowInvalid, RecordBatch, memory_map

from podium.errors import DataError

logger = logging.getLogger(__name__)

IN_MEMORY_BYTES = 32 << 20
"""Parquet files smaller than this, uncompressed, are simply read."""
BATCH_ROWS = 4096
CACHE = ".podium_cache"


class ArrowRows:
    """Rows of record batches, found by number."""

    def __init__(self, batches: Sequence[RecordBatch]) -> None:
        self._batches = [batch for batch in batches if batch.num_rows]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, row: int) -> dict[str, Any]:
        place = int(np.searchsorted(self._starts, row, side="right")) - 1
        rows: list[dict[str, Any]] = self._batches[place].slice(row - int(self._starts[place]), 1).to_pylist()
        return rows[0]


def open_parquet(path: Path, cache_dir: str) -> ArrowRows:
    with pyarrow.parquet.ParquetFile(path, memory_map=True) as file:
        groups = range(file.metadata.num_row_groups)
        size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
        if size < IN_MEMORY_BYTES:
            return ArrowRows(file.read().to_batches(max_chunksize=BATCH_ROWS))
        cached = cache_path(path, cache_dir)
        if not cached.exists():
            _convert(file, cached)
    return open_arrow(cached)


def open_arrow(path: Path) -> ArrowRows:
    """An Arrow file, in the random-access or the streaming form."""
    source = memory_map(str(path))
    try:
        reader = ipc.open_file(source)
        return ArrowRows([reader.get_batch(i) for i in range(reader.num_record_batches)])
    except ArrowInvalid:
        source.seek(0)
        return ArrowRows(list(ipc.open_stream(source)))


def open_datasets_folder(folder: Path, split: str) -> ArrowRows:
    """A folder of `Dataset.save_to_disk`, or the fitting split of `DatasetDict.save_to_disk`."""
    if (folder / "dataset_dict.json").is_file():
        splits = json.loads((folder / "dataset_dict.json").read_text())["splits"]
        wanted = ("train",) if split == "train" else ("validation", "val", "test")
        name = next((name for name in wanted if name in splits), None)
        if name is None:
            raise DataError(f"{folder} has the splits {splits}, none of them {' or '.join(wanted)}; name its subfolder")
        folder = folder / name
    if not (folder / "state.json").is_file():
        raise DataError(f"{folder} is no folder of the datasets library: it has no state.json")
    names = [item["filename"] for item in json.loads((folder / "state.json").read_text())["_data_files"]]
    return ArrowRows([batch for name in names for batch in open_arrow(folder / name)._batches])


def cache_path(path: Path, cache_dir: str) -> Path:
    """Named after the file's place, size and time: another content is another cache file."""
    stat = path.stat()
    key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    name = f"{path.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.arrow"
    folder = Path(cache_dir).expanduser() if cache_dir else path.parent / CACHE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        folder = Path(tempfile.gettempdir()) / f"podium_cache_{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        logger.info("%s is kept as an Arrow file in %s", path, folder)
    return folder / name


def _convert(file: pyarrow.parquet.ParquetFile, target: Path) -> None:
    """Whole or not at all; two runs that start together do not disturb each other."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with partial.open("wb") as sink, ipc.new_file(sink, file.schema_arrow) as writer:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                writer.write_batch(batch)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
