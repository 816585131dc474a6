"""The manifest of a checkpoint: every file with its size and checksum.

A folder with a manifest that holds is complete; anything else is not a checkpoint. Writing one also brings the files to
the disk, so that a machine that loses power keeps what was published. It knows nothing of what the files mean.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from podium.errors import CheckpointError

NAME = "manifest.json"
FORMAT = 1
_CHUNK_BYTES = 1 << 20


def write_manifest(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Describe what is in the folder, with some `facts` beside it, and bring all of it to the disk."""
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": _checksum(path, to_disk=True)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != NAME
    }
    manifest = {"format": FORMAT, **facts, "files": files}
    partial = folder / f".{NAME}"
    with partial.open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / NAME)
    for path in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
        sync_folder(path)
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a complete checkpoint: it has no {NAME}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise CheckpointError(f"{path} is not a manifest")
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {manifest.get('format')}; this version reads format {FORMAT}")
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
        for name, expected in files.items():
            if _checksum(folder / name) != expected["sha256"]:
                return f"{name} differs from its checksum in the manifest"
    return None


def sync_folder(folder: Path) -> None:
    """Bring a folder's own entries (names, renames) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(path: Path, to_disk: bool = False) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        if to_disk:
            os.fsync(file.fileno())
    return digest.hexdigest()
