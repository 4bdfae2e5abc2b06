"""What a handler reads outside its record: the clock, random numbers, files, sockets and processes.

A value from outside is not in the journal, so the code may come to a different result today. While a handler
runs, its own files are watched. A profile of their calls finds clock and random numbers, and Python's audit
events find files, sockets and processes, whichever library opens them. What the runtime reads does not count,
and neither does an import.
"""

import datetime
import inspect
import os
import random
import secrets
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final, Literal, get_args

from mesh.agent.errors import TurnError, is_own, place

Kind = Literal["clock", "random", "files", "sockets", "processes"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_CLOCK = (time.time, time.time_ns)
_BUILTINS: Final[dict[Any, Kind]] = {
    **dict.fromkeys(_CLOCK, "clock"),
    os.urandom: "random",
    random.random: "random",
    random.getrandbits: "random",
}
_CLOCK_METHODS: Final = frozenset({"now", "utcnow", "today"})
"""Methods of dates, whose classes have no module's name in the call."""
_FUNCTIONS: Final[dict[CodeType, Kind]] = {
    function.__code__: "random"
    for function in (uuid.uuid1, uuid.uuid4, secrets.token_bytes, secrets.token_hex, secrets.token_urlsafe)
}
_RANDOM_METHODS: Final[dict[CodeType, Kind]] = {
    method.__code__: "random" for method in vars(random.Random).values() if hasattr(method, "__code__")
}
_EVENTS: Final[dict[str, Kind]] = {
    "open": "files",
    "os.listdir": "files",
    "os.scandir": "files",
    "os.remove": "files",
    "os.rename": "files",
    "os.mkdir": "files",
    "os.rmdir": "files",
    "os.truncate": "files",
    "sqlite3.connect": "files",
    "socket.connect": "sockets",
    "socket.bind": "sockets",
    "socket.getaddrinfo": "sockets",
    "socket.gethostbyname": "sockets",
    "socket.sendto": "sockets",
    "subprocess.Popen": "processes",
    "os.system": "processes",
    "os.exec": "processes",
    "os.posix_spawn": "processes",
    "os.fork": "processes",
}
_NAMES: Final = frozenset(
    {*(each.__name__ for each in _CLOCK), *_CLOCK_METHODS, "urandom", "uuid1", "uuid4", "token_bytes"}
    | {"token_hex", "token_urlsafe"}
    | {name for name in dir(random) if callable(getattr(random, name)) and not name.startswith("_")}
) - {"Random"}
"""Code that names none of these reads neither clock nor random numbers: its calls need no profile."""
_RUNTIME: Final = frozenset({"mesh", "protocol"})
_IMPORTS: Final = frozenset(
    {"importlib._bootstrap", "importlib._bootstrap_external", "_frozen_importlib_external", "linecache"}
)
_DEBUGGERS: Final = frozenset({"pdb", "bdb", "ipdb", "IPython", "debugpy", "pydevd", "_pydevd_bundle"})
"""Their reading is not the handler's: an author stopped it there, and looks around."""


class ReadsOutside(TurnError, code="replay.outside"):
    """A handler reads something that is in no record."""

    def __init__(self, kind: Kind, what: str, where: str) -> None:
        super().__init__(f"{what}, at {where}" if where else what)
        self.kind, self.what, self.where = kind, what, where


class Outside:
    """Watches one agent's handler.

    Args:
        handler: the function whose calls are watched.
        allowed: kinds of what it may read nevertheless.
    """

    def __init__(self, handler: object, allowed: Collection[str] = ()) -> None:
        self._allowed = frozenset(allowed)
        self._profiles = not {"clock", "random"} <= self._allowed and _may_read(handler)

    @contextmanager
    def watched(self, stop: Callable[[TurnError], TurnError]) -> Iterator[None]:
        """Watch what the code of this block reads. It is stopped when it reads something outside.

        Args:
            stop: takes the error, even if the code catches it.
        """
        global _watching
        _audit_once()
        before, profile = _watching, sys.getprofile()
        _watching = _Watch(self, stop)
        if self._profiles:
            sys.setprofile(_watching.profile)
        try:
            yield
        finally:
            if self._profiles:
                sys.setprofile(profile)
            _watching = before

    def forbids(self, kind: Kind) -> bool:
        return kind not in self._allowed


class _Watch:
    def __init__(self, outside: Outside, stop: Callable[[TurnError], TurnError]) -> None:
        self._outside, self._stop = outside, stop
        self._busy = False

    def found(self, kind: Kind, what: str, frame: FrameType) -> None:
        where = place(frame.f_code, frame.f_lineno)
        raise self._stop(ReadsOutside(kind, what, where))

    # --- clock and random numbers -----------------------------------------------------------------

    def profile(self, frame: FrameType, event: str, called: Any) -> None:
        """Check a call. An error that is raised here is raised by the call."""
        if event == "c_call":
            kind = _BUILTINS.get(called) if isinstance(called, BuiltinFunctionType) else None
            if kind is None:
                if called.__name__ not in _CLOCK_METHODS or not _is_date(called):
                    return
                kind = "clock"
            caller: FrameType | None = frame
            what = _called(called)
        elif event == "call":
            kind = _FUNCTIONS.get(frame.f_code) or _is_shared_source(frame)
            if kind is None:
                return
            caller, what = frame.f_back, f"calls {frame.f_globals['__name__']}.{frame.f_code.co_name}"
        else:
            return
        if caller is not None and _is_own(caller.f_code.co_filename) and self._outside.forbids(kind):
            self.found(kind, what, caller)

    # --- files, sockets and processes -------------------------------------------------------------

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        kind = _EVENTS.get(event)
        if kind is None or self._busy or not self._outside.forbids(kind):
            return
        self._busy = True  # the checks here may open files themselves
        try:
            frame = _reader(sys._getframe(2))
            if frame is not None:
                self.found(kind, _opened(event, arguments), frame)
        finally:
            self._busy = False


_watching: _Watch | None = None
_audits = False


def _audit_once() -> None:
    """Receive Python's audit events from here on; a hook cannot be removed."""
    global _audits
    if not _audits:
        _audits = True
        sys.addaudithook(_on_audit)


def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching is not None:
        _watching.audit(event, arguments)


@cache
def _is_own(filename: str) -> bool:
    return is_own(filename)


def _reader(frame: FrameType | None) -> FrameType | None:
    """Return the author's frame that reads; None if the runtime reads, or an import."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "<module>":
            return None
        if name.partition(".")[0] in _RUNTIME | _DEBUGGERS or name in _IMPORTS:
            return None
        if _is_own(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


def _is_date(called: Any) -> bool:
    owner = getattr(called, "__self__", None)
    return isinstance(owner, type) and issubclass(owner, datetime.date)


def _is_shared_source(frame: FrameType) -> Kind | None:
    """Return `random` for a method of a random source that the handler has not seeded itself."""
    if frame.f_code not in _RANDOM_METHODS:
        return None
    source = frame.f_locals.get("self")
    is_shared = source is getattr(random.random, "__self__", None) or isinstance(source, random.SystemRandom)
    return "random" if is_shared else None


def _called(called: Any) -> str:
    """Return the name of what is called, as an author knows it."""
    owner = getattr(called, "__self__", None)
    named = owner.__name__ if isinstance(owner, type | ModuleType) else "random"
    return f"calls {named.replace('posix', 'os')}.{called.__name__}"


def _opened(event: str, arguments: tuple[Any, ...]) -> str:
    about = arguments[0] if arguments else ""
    if event.startswith("socket.") and len(arguments) > 1:
        about = arguments[1] if event in ("socket.connect", "socket.bind") else arguments[0]
    name = os.fsdecode(about) if isinstance(about, str | bytes) else about
    return f"{event} {name!r}"[:200]


# --- does the code name any of it -------------------------------------------------------------------


def _may_read(handler: object) -> bool:
    """Return True if a function, or an author's code that it names, names a clock or random numbers.

    Calls without a name that can be looked up are not found.
    """
    seen, left = set[int](), [handler]
    while left:
        found = inspect.unwrap(each) if callable(each := left.pop()) else each
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, MethodType):
            left.append(found.__func__)
        elif isinstance(found, FunctionType):
            is_own_code = _is_own(found.__code__.co_filename)
            names = {name for code in _codes(found.__code__) for name in code.co_names}
            if is_own_code and not _NAMES.isdisjoint(names):
                return True
            left += [cell.cell_contents for cell in found.__closure__ or () if not _is_empty(cell)]
            if is_own_code:
                left += [found.__globals__[name] for name in names if name in found.__globals__]
        elif isinstance(found, ModuleType):
            if _is_own(getattr(found, "__file__", None) or ""):
                left += [each for each in vars(found).values() if callable(each)]
        else:
            kind = found if isinstance(found, type) else type(found)
            if _is_own(getattr(sys.modules.get(kind.__module__), "__file__", None) or ""):
                left += [getattr(each, "__func__", each) for each in vars(kind).values() if callable(each)]
    return False


def _is_empty(cell: CellType) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)
