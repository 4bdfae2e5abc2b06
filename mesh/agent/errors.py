"""Errors by which an agent's code and its tools say how they failed, and errors that stop a round.

    TurnError               a round's end: a handler raises it, or the runtime does
    ├── Retry               the next round may not fail
    │   └── Throttled       a model cannot be asked yet: the round waits for it
    ├── Permanent           no further round can help
    ├── EffectUnknown       nobody knows if an effect happened
    └── Superseded, Fenced, JournalMismatch, InDoubt, RoundOver, ApprovalNeeded
    ToolError               a tool's no: an outcome, which stops nothing

An `ArtifactError` (`mesh.errors`) ends a round, too, unless the code catches it. Anything else that a handler
raises is a bug. An error that stops a round is not for the code: the journal keeps it and raises it again at
every step.
"""

import contextlib
import functools
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType

from mesh.errors import ArtifactError, MeshError
from mesh.service.logs import shows_values
from mesh.service.printable import short
from protocol.wire.commands import Failure
from protocol.wire.moves import Ask


class TurnError(MeshError, code="turn.error"):
    """Root of what ends a round. `str(error)` goes on the bus: keep it a safe sentence."""

    permanent = False
    """True if no further round can help."""
    is_bug = False
    """True if the place in the author's code is what its reader needs."""
    bug: BaseException | None = None
    """The exception of an author's code that led to it."""


class Retry(TurnError, code="retry"):
    """This round failed and the next may not: the guard tries again, with backoff.

    Args:
        after_s: not before so many seconds; the guard's own backoff if None.
    """

    def __init__(self, message: str = "", *, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Throttled(Retry, code="throttled"):
    """A model is asked too fast. The runtime waits and asks again, for as long as the round may take.

    Args:
        after_s: when it may be asked again; at once if None.
    """


class Permanent(TurnError, code="permanent"):
    """No further round can help: the turn escalates at once."""

    permanent = True


class ActionNotAllowed(Permanent, code="action_not_allowed"):
    """The turn's constraints do not allow this tool."""

    is_bug = True


class BudgetExhausted(Permanent, code="budget_exhausted"):
    """The turn has spent its grant: no further model call is made."""


class FactUnusable(Permanent, code="fact_unusable"):
    """A fact that the code asked for is not there, or is not of the type that it was asked as."""

    is_bug = True


class ResultUnusable(Permanent, code="result_unusable"):
    """A tool's result is not of the type that its annotation says; the text names each mistake."""

    is_bug = True

    def __init__(self, tool: str, mistakes: Sequence[str]) -> None:
        super().__init__(f"the result of {tool} is not what its annotation says: {'; '.join(mistakes)}")


class PostUnusable(Permanent, code="post_unusable"):
    """Facts cannot be put on the board: this topology has none, or nobody could read them."""

    is_bug = True


class JournalFull(Permanent, code="journal_full"):
    """More steps, or a larger value, than a turn may journal."""


class ToolsUnusable(Permanent, code="tools.unusable"):
    """A model cannot use an agent's tools: one lacks a name of its own, a schema, or a description."""


class EffectUnknown(TurnError, code="effect_unknown"):
    """A tool raises it of its own effect: it was asked for, and nobody answered if it happened.

    An effect that can be run again, or asked about, is: in the next round. Any other is in doubt.
    """


class Superseded(TurnError, code="superseded"):
    """The turn was ended by somebody else; there is nothing left to propose."""


class Fenced(TurnError, code="journal.fenced"):
    """Another instance, or a later round, has this turn; nothing may be done or proposed any more."""


class RoundOver(TurnError, code="round_over"):
    """The code has returned its move, and something that it left running begins another step."""


class JournalMismatch(TurnError, code="journal_mismatch"):
    """The code does not do what its journal says it did."""

    def __init__(self, step: str, recorded: str, called: str, *, with_effect: bool) -> None:
        if recorded == called:
            called += " with other arguments"
        super().__init__(f"step {step} was {recorded}, the code now calls {called}")
        self.step = step
        self.permanent = with_effect  # with an effect in the journal no fresh round may be tried


class InDoubt(TurnError, code="effect_in_doubt"):
    """An effect has an intent and no result, and nobody but a person can say what became of it."""

    def __init__(self, step: str, action: str, key: str, error: TurnError | None = None) -> None:
        super().__init__(f"{action} at step {step}")
        self.step, self.action, self.key = step, action, key
        self.why = "" if error is None else str(error)
        self.bug = None if error is None else error.bug


class ApprovalNeeded(TurnError, code="approval_needed"):
    """An effect waits for somebody's yes: the turn is suspended with this ask."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(f"{ask.action} needs the approval of {ask.to_agent}")
        self.ask = ask


class NotAMove(TypeError):
    """A handler returned something else than a move; mostly, a `return` was forgotten.

    Args:
        handler: the function that returned it.
    """

    def __init__(self, returned: object, handler: object = None) -> None:
        said = "nothing" if returned is None else f"a {type(returned).__name__}"
        place = where_defined(handler)
        super().__init__(
            f"the handler{f' ({place})' if place else ''} returned {said}; "
            "return a move: turn.transfer(…), turn.complete(…), …"
        )


class UnknownFact(KeyError):
    """`turn.facts[key]` where no fact has that key; the text names those that there are.

    Args:
        kind: what is looked for; `turn.results[name]` has its unknown names, too.
    """

    def __init__(self, key: str, known: Iterable[str], kind: str = "fact") -> None:
        import difflib

        known = tuple(known)
        near = difflib.get_close_matches(str(key), known, 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        self._said = f"no {kind} {key!r}: there are {', '.join(known) or 'none'}{meant}"
        super().__init__(key)

    def __str__(self) -> str:
        return self._said


def failure_of(error: BaseException) -> Failure:
    """Return a failure as it goes on the bus: a code and a safe sentence, never a repr."""
    match error:
        case ArtifactError(permanent=permanent):
            return Failure(code=error.code, message=str(error), permanent=permanent)
        case Retry(after_s=after_s):
            return Failure(code=error.code, message=str(error), retry_after_s=after_s)
        case TurnError(permanent=permanent):
            said = _at_its_place(str(error), error) if error.is_bug else str(error)
            return Failure(code=error.code, message=said, permanent=permanent)
        case ToolRefused(reason=reason):
            said = f"a tool said no ({reason}), and the handler does not catch ToolRefused"
            return Failure(code=error.code, message=said)
        case MeshError():
            return Failure(code=error.code, message="the runtime could not go on")
    is_plain = isinstance(error, NotAMove | UnknownFact)
    said = _at_its_place(str(error), error) if is_plain else raised("the handler", error)
    return Failure(code="bug", message=said)


def raised(what: str, error: BaseException) -> str:
    """Return that a handler or a tool raised an exception: its type, and the place in the author's code.

    The exception's own text may hold anybody's data. It is quoted where `MESH_LOG_VALUES` allows that.
    """
    text = ""
    if shows_values():
        with contextlib.suppress(Exception):  # an author's `__str__` may raise, too
            text = short(str(error), _TEXT_CHARS)
    said = _at_its_place(f"{what} raised {type(error).__name__}", error)
    return f"{said}: {text}" if text else said


def effect_broke(action: str, error: Exception) -> TurnError:
    """Return the error of a round whose effect raised: like a crash, for nobody knows how far it came."""
    if isinstance(error, TurnError):
        return error
    unknown = EffectUnknown(raised(action, error))
    unknown.bug = error
    return unknown


def bug_behind(error: Exception | None) -> BaseException | None:
    """Return the exception whose traceback shows the mistake; None where the code said how it failed."""
    if isinstance(error, TurnError):
        return error if error.is_bug else error.bug
    return None if isinstance(error, MeshError) else error


# --- a tool's no ----------------------------------------------------------------------------------


class ToolError(MeshError, code="tool.error"):
    """A tool cannot do what was asked, and did nothing. The text is for the model: say what would do.

    It is an outcome: the journal keeps it, and a turn that runs again gets it again, as a `ToolRefused`.
    """


class ToolRefused(ToolError, code="tool.refused"):
    """A tool's no as `turn.call` raises it, the first time and every time it is replayed.

    `reason` is the code of the error that the tool raised; `not_approved` or `approval_expired` where an
    effect waited for a yes and did not get it.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ToolTimedOut(ToolError, code="tool.timed_out"):
    """A tool that only reads took longer than it may. It is an outcome, like a no."""


class NotBegun(ToolError, code="tool.not_begun"):
    """Nothing was run, this time. It does not say what an earlier attempt at the effect did."""


class ToolBusy(NotBegun, code="tool.busy"):
    """So many calls of this tool are under way and do not end that none can begin; nothing was run."""


class ToolArgumentsInvalid(ToolError, code="tool.arguments_invalid"):
    """The arguments do not fit the tool's schema; nothing was run. The text names each mistake."""

    def __init__(self, tool: str, mistakes: tuple[str, ...]) -> None:
        super().__init__(f"{tool} was not called: {'; '.join(mistakes)}")
        self.tool, self.mistakes = tool, mistakes


# --- places in an author's code ---------------------------------------------------------------------

_INSTALLED = ("site-packages", "dist-packages")
_TEXT_CHARS = 200
"""Of an exception's own text in a message: what is longer stands in the log."""


def _at_its_place(said: str, error: BaseException) -> str:
    place = where_raised(error)
    return f"{said}, at {place}" if place else said


def where_raised(error: BaseException) -> str:
    """Return the innermost place of an author's code that an error went through; empty if there is none.

    It is `file.py:12 in handler`. It goes on the bus, so it holds no value and no whole path.
    """
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = ((code, line) for code, line in reversed(frames) if is_own(code.co_filename))
    code, line = next(own, (None, 0))
    if code is None:  # a tool that wants to end the process, say: its error is the cause of ours
        return "" if error.__cause__ is None else where_raised(error.__cause__)
    return place(code, line)


def where_defined(function: object) -> str:
    """Return where a function begins; empty if that is not an author's code."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not is_own(code.co_filename):
        return ""
    return place(code, code.co_firstlineno)


@functools.cache
def _libraries() -> tuple[Path, ...]:
    import sysconfig

    here, standard = Path(__file__).resolve().parents[1], Path(sysconfig.get_path("stdlib"))
    return (here, here.with_name("protocol"), standard.resolve())


def is_own(filename: str) -> bool:
    """Return True for a file of an author: neither installed, nor Python's, nor the runtime's."""
    path = Path(filename).resolve()
    is_installed = any(part in _INSTALLED for part in path.parts)
    return path.is_file() and not is_installed and not any(map(path.is_relative_to, _libraries()))


def place(code: CodeType, line: int) -> str:
    """Return where a line is, `file.py:12 in handler`: no whole path, which says whose machine it is."""
    file = Path(code.co_filename)
    here = Path.cwd()
    shown = file.relative_to(here) if file.is_relative_to(here) else Path(*file.parts[-2:])
    return f"{shown}:{line} in {code.co_name}"
