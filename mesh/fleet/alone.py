"""Admins that work at once: one after the other changes a fleet file, or a folder of `mesh setup --out`."""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_NO_PART = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY}
"""How a folder refuses a new file, and a file that is mounted by itself refuses to be replaced."""


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until nobody else works on a folder, then keep others out until this ends or dies.

    Whoever holds a folder must not ask for it again: it would wait for itself. The lock is on the folder
    itself, so nothing is left behind. A folder that cannot be locked, as on some network disks, is used
    without. So is one that is not there: what is asked for says so.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            opened = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, opened)
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def rewrite(path: Path, text: str) -> None:
    """Atomically replace the text of a file. Its mode and its owner stay, and so does a link to it.

    A file whose folder takes no other file is written in place. Raises OSError.
    """
    path = path.resolve()
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.new")
    try:
        try:
            path.open("r+").close()  # a file that is read-only stays as it is
            part.touch(mode=0o600, exist_ok=False)
            part.write_text(text)
            there = path.stat()
            with contextlib.suppress(PermissionError):  # only root gives files away
                os.chown(part, there.st_uid, there.st_gid)
            part.chmod(stat.S_IMODE(there.st_mode))
            part.replace(path)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()  # there is one only if something failed
    except OSError as refused:
        if refused.errno not in _NO_PART:
            raise
        path.write_text(text)
