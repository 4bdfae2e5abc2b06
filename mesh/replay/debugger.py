"""A debugger in an agent's code while its round runs again: at its first line, and where it raised."""

import inspect
import pdb
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, TracebackType

from mesh.agent.definition import Agent
from mesh.agent.errors import is_own


@contextmanager
def stopped_at(agent: Agent) -> Iterator[None]:
    """Stop at the first line of an agent's handler, as it is called in this block."""
    code = _code_of(agent.handler)
    if code is None:
        yield
        return
    debugger = pdb.Pdb(nosigint=True)
    debugger.reset()
    debugger.botframe = sys._getframe()
    debugger.set_break(code.co_filename, code.co_firstlineno, temporary=True, funcname=code.co_name)
    debugger.set_continue()
    before = sys.gettrace()
    sys.settrace(debugger.trace_dispatch)
    try:
        yield
    finally:
        sys.settrace(before)


def look_into(error: BaseException) -> None:
    """Open the debugger where an error left the author's code; where it was raised, if it never was there."""
    trace = _as_far_as_own(error.__traceback__) or error.__traceback__
    debugger = pdb.Pdb(nosigint=True)
    debugger.reset()
    debugger.interaction(None, trace)


def _code_of(handler: object) -> CodeType | None:
    function = inspect.unwrap(handler) if callable(handler) else handler
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, CodeType) and Path(code.co_filename).is_file() else None


def _as_far_as_own(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without what lies beneath its last place in an author's code."""
    if trace is None:
        return None
    beneath = _as_far_as_own(trace.tb_next)
    if beneath is None and not is_own(trace.tb_frame.f_code.co_filename):
        return None
    return TracebackType(beneath, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
