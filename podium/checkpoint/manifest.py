"""The manifest of a checkpoint: every file with its size and checksum, and a checksum of itself.

A folder with a manifest that holds is complete; anything else is not a checkpoint. Writing one also brings the files to
the disk, so that a machine that loses power keeps what was published. It knows nothing of what the files mean.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from podium.errors import CheckpointError

NAME = "manifest.json"
FORMAT = 2
_WITHOUT_CHECKSUM = 1
"""The format of manifests that do not check themselves; they are read too."""
_CHECKSUM, _NO_CHECKSUM = "checksum", "0" * 64
"""Its place in the text is filled with zeros while it is computed."""
_CHUNK_BYTES = 1 << 20
_MAX_READERS = 16


def write_manifest(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Describe what is in the folder, with some `facts` beside it, and bring all of it to the disk."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / NAME]
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": checksum}
        for path, checksum in zip(paths, _checksums(paths, to_disk=True), strict=True)
    }
    manifest = {"format": FORMAT, **facts, "files": files, _CHECKSUM: _NO_CHECKSUM}
    text = json.dumps(manifest, indent=1)
    manifest[_CHECKSUM] = _text_checksum(text)
    partial = folder / f".{NAME}"
    with partial.open("w", encoding="utf-8") as file:
        file.write(json.dumps(manifest, indent=1))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / NAME)
    for path in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
        sync_folder(path)
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a complete checkpoint: it has no {NAME}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return parse_manifest(text, str(path))


def parse_manifest(text: str, place: str) -> dict[str, Any]:
    """What a manifest says; raises unless it is whole. `place`: where it is, for the message."""
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{place} cannot be read: {error}") from error
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{place} is not a manifest")
    if manifest.get("format") not in (FORMAT, _WITHOUT_CHECKSUM):
        raise CheckpointError(f"{place} has format {manifest.get('format')}; this version reads format {FORMAT}")
    if manifest["format"] == FORMAT:
        given = manifest.get(_CHECKSUM)
        if not isinstance(given, str) or _text_checksum(_NO_CHECKSUM.join(text.rsplit(given, 1))) != given:
            raise CheckpointError(f"{place} differs from its own checksum")
    files = manifest.get("files")
    if not isinstance(files, dict) or not isinstance(manifest.get("metrics", {}), dict):
        raise CheckpointError(f"{place} is not a manifest")
    for name, entry in files.items():
        is_entry = isinstance(entry, dict) and type(entry.get("bytes")) is int and isinstance(entry.get("sha256"), str)
        if not is_entry:
            raise CheckpointError(f"{place} is not a manifest: the size and checksum of {name!r} are not in it")
    return manifest


def find_fault(folder: Path, *, deep: bool = True) -> str | None:
    """What is wrong with a checkpoint, or None. `deep` reads every byte; otherwise names and sizes are compared."""
    try:
        files = read_manifest(folder)["files"]
    except CheckpointError as error:
        return str(error)
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != expected["bytes"]:
            return f"{name} has {size} bytes, the manifest says {expected['bytes']}"
    if deep:
        for (name, expected), checksum in zip(files.items(), _checksums([folder / n for n in files]), strict=True):
            if checksum != expected["sha256"]:
                return f"{name} differs from its checksum in the manifest"
    return None


def sync_folder(folder: Path) -> None:
    """Bring a folder's own entries (names, renames) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _text_checksum(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _checksums(paths: list[Path], to_disk: bool = False) -> list[str]:
    """Several files at once: one thread hashes half a gigabyte a second, and a checkpoint may have terabytes."""
    with ThreadPoolExecutor(min(_MAX_READERS, os.cpu_count() or 1), thread_name_prefix="checksum") as pool:
        return list(pool.map(lambda path: _checksum(path, to_disk), paths))


def _checksum(path: Path, to_disk: bool = False) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        if to_disk:
            os.fsync(file.fileno())
    return digest.hexdigest()
