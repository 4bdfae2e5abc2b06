"""Unpacking of archives that tests made themselves."""

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack a tar as data alone, where this Python can: 3.11 has that from 3.11.4 on."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
