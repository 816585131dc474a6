"""Reading a torch.distributed.checkpoint folder without running anybody's code.

Its `.metadata` is a pickle. This reader makes only the few plain records that torch itself writes there and refuses
every other name, so a hostile folder cannot run anything; tensors are read by torch's weights-only loader.
"""

from __future__ import annotations

import pickle
from pathlib import PosixPath, PurePath
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from podium.errors import CheckpointError

_RECORDS = {
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
        *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
}


class _RecordsOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in ("pathlib", "pathlib._local") and name in ("PosixPath", "PurePosixPath", "WindowsPath"):
            return PosixPath if name == "PosixPath" else PurePath
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _RECORDS.get(module, ()):
            return super().find_class(module, name)
        raise CheckpointError(f"its .metadata asks for {module}.{name}, which no checkpoint needs; it is refused")


class SafeReader(FileSystemReader):
    """torch's reader with a guarded `.metadata`."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = self._get_metadata_path(kwargs.get("rank"))
        with self.fs.create_stream(path, "rb") as file:
            try:
                metadata = _RecordsOnly(file).load()
            except CheckpointError as error:
                raise CheckpointError(f"{path}: {error}") from None
            except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, IndexError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}") from error
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{path} holds no checkpoint metadata")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
