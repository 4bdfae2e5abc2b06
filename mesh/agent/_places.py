"""Places in an author's own code: `file.py:12 in handler`. They go on the bus: no value, no whole path."""

import functools
import traceback
from pathlib import Path
from types import CodeType

_INSTALLED = ("site-packages", "dist-packages")


def where_raised(error: BaseException) -> str:
    """Return the innermost place of an author's code that an error went through; empty if there is none."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = ((code, line) for code, line in reversed(frames) if _is_own(code.co_filename))
    code, line = next(own, (None, 0))
    return "" if code is None else _place(code, line)


def where_defined(function: object) -> str:
    """Return where a function begins; empty if that is not an author's code."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not _is_own(code.co_filename):
        return ""
    return _place(code, code.co_firstlineno)


@functools.cache
def _libraries() -> tuple[Path, ...]:
    import sysconfig

    here, standard = Path(__file__).resolve().parents[1], Path(sysconfig.get_path("stdlib"))
    return (here, here.with_name("protocol"), standard.resolve())


def _is_own(filename: str) -> bool:
    path = Path(filename).resolve()
    is_installed = any(part in _INSTALLED for part in path.parts)
    return path.is_file() and not is_installed and not any(map(path.is_relative_to, _libraries()))


def _place(code: CodeType, line: int) -> str:
    file = Path(code.co_filename)
    here = Path.cwd()
    shown = file.relative_to(here) if file.is_relative_to(here) else Path(*file.parts[-2:])
    return f"{shown}:{line} in {code.co_name}"
