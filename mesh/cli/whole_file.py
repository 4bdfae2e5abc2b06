"""A file that is whole or as it was before: what is written takes its place only at the end."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mesh.cli.output import raw_out
from mesh.ops.errors import UsageWrong


@contextlib.contextmanager
def whole_file(path: Path | None) -> Iterator[BinaryIO]:
    """Yield where to write; standard output without a path.

    What was there stays where anything goes wrong: it may be the only copy of a log that has aged out.
    Devices and pipes are written to as they are. Raises UsageWrong where nothing can be written.
    """
    if path is None:
        yield from raw_out()
        return
    with _said_of(path):
        in_place = path.exists() and not path.is_file()
        at = path if in_place else path.with_name(f".{path.name}.{os.getpid()}.part")
        file = at.open("wb" if in_place else "xb")
    try:
        with file:
            yield file
            with _said_of(path):
                file.flush()
        if not in_place:
            with _said_of(path):
                at.replace(path)
    finally:
        if not in_place:
            at.unlink(missing_ok=True)


@contextlib.contextmanager
def _said_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as wrong:
        raise UsageWrong(f"{path} cannot be written: {wrong.strerror}") from wrong
