"""Errors that an agent's code and its tools raise to report how they failed, and errors that stop a round.

    TurnError               ends a round: raised by a handler or by the runtime
    ├── Retry               the next round may succeed
    │   └── Throttled       a model cannot be asked yet: the round waits for it
    ├── Permanent           no further round can help
    ├── EffectUnknown       it is unknown whether an effect happened
    └── Superseded, Fenced, JournalMismatch, InDoubt, RoundOver, ApprovalNeeded
    ToolError               a tool's refusal: an outcome, which stops nothing

An `ArtifactError` (`mesh.errors`) also ends a round, unless the code catches it. Anything else that a handler
raises is a bug. An error that stops a round is not for the code to handle: the journal keeps it and raises it
again at every step.
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
    """Root of the errors that end a round. `str(error)` goes on the bus: keep it a safe sentence."""

    permanent = False
    """True if no further round can help."""
    is_bug = False
    """True if its reader needs the place in the author's code."""
    bug: BaseException | None = None
    """The exception in the author's code that caused it."""


class Retry(TurnError, code="retry"):
    """This round failed, and the next may succeed: the guard tries again, with backoff.

    Args:
        after_s: wait at least so many seconds; None for the guard's own backoff.
    """

    def __init__(self, message: str = "", *, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Throttled(Retry, code="throttled"):
    """A model is being asked too fast. The runtime waits and asks again, for as long as the round may take.

    Args:
        after_s: when it may be asked again; None for at once.
    """


class Permanent(TurnError, code="permanent"):
    """No further round can help: the turn escalates at once."""

    permanent = True


class ActionNotAllowed(Permanent, code="action_not_allowed"):
    """The turn's constraints do not allow this tool."""

    is_bug = True


class BudgetExhausted(Permanent, code="budget_exhausted"):
    """The turn has spent its budget: no further model call is made."""


class FactUnusable(Permanent, code="fact_unusable"):
    """A fact that the code asked for is missing, or has another type than the code asked for."""

    is_bug = True


class ResultUnusable(Permanent, code="result_unusable"):
    """A tool's result does not have the type of its annotation; the text names each mistake."""

    is_bug = True

    def __init__(self, tool: str, mistakes: Sequence[str]) -> None:
        super().__init__(f"the result of {tool} is not what its annotation says: {'; '.join(mistakes)}")


class PostUnusable(Permanent, code="post_unusable"):
    """Facts cannot be put on the board: this topology has none, or the facts cannot be read."""

    is_bug = True


class JournalFull(Permanent, code="journal_full"):
    """More steps, or a larger value, than a turn may journal."""


class ToolsUnusable(Permanent, code="tools.unusable"):
    """A model cannot use an agent's tools: one has no unique name, no schema, or no description."""


class EffectUnknown(TurnError, code="effect_unknown"):
    """Raised by a tool about its own effect: it was requested, and it is unknown whether it happened.

    If the effect can be run again, or asked about, the next round does so. Otherwise it is in doubt.
    """


class Superseded(TurnError, code="superseded"):
    """The turn was ended elsewhere; there is nothing left to propose."""


class Fenced(TurnError, code="journal.fenced"):
    """Another instance, or a later round, has this turn; nothing more may be done or proposed."""


class RoundOver(TurnError, code="round_over"):
    """The code has returned its move, and something that it left running begins another step."""


class JournalMismatch(TurnError, code="journal_mismatch"):
    """The code does not do what its journal recorded."""

    def __init__(self, step: str, recorded: str, called: str, *, with_effect: bool) -> None:
        if recorded == called:
            called += " with other arguments"
        super().__init__(f"step {step} was {recorded}, the code now calls {called}")
        self.step = step
        self.permanent = with_effect  # with an effect in the journal no new round may be tried


class InDoubt(TurnError, code="effect_in_doubt"):
    """An effect has an intent and no result, and only a person can find out what became of it."""

    def __init__(self, step: str, action: str, key: str, error: TurnError | None = None) -> None:
        super().__init__(f"{action} at step {step}")
        self.step, self.action, self.key = step, action, key
        self.why = "" if error is None else str(error)
        self.bug = None if error is None else error.bug


class ApprovalNeeded(TurnError, code="approval_needed"):
    """An effect waits for an approval: the turn is suspended with this ask."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(f"{ask.action} needs the approval of {ask.to_agent}")
        self.ask = ask


class NotAMove(TypeError):
    """A handler returned something other than a move; usually a `return` was forgotten.

    Args:
        handler: the function that returned it.
    """

    def __init__(self, returned: object, handler: object = None) -> None:
        kind = "nothing" if returned is None else f"a {type(returned).__name__}"
        place = where_defined(handler)
        super().__init__(
            f"the handler{f' ({place})' if place else ''} returned {kind}; "
            "return a move: turn.transfer(…), turn.complete(…), …"
        )


class UnknownFact(KeyError):
    """Raised by `turn.facts[key]` if no fact has that key; the text names the known keys.

    Args:
        kind: what is looked up; `turn.results[name]` raises it for unknown tasks, too.
    """

    def __init__(self, key: str, known: Iterable[str], kind: str = "fact") -> None:
        import difflib

        known = tuple(known)
        near = difflib.get_close_matches(str(key), known, 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        self._text = f"no {kind} {key!r}: there are {', '.join(known) or 'none'}{meant}"
        super().__init__(key)

    def __str__(self) -> str:
        return self._text


def failure_of(error: BaseException) -> Failure:
    """Return a failure as it goes on the bus: a code and a safe sentence, never a repr."""
    match error:
        case ArtifactError(permanent=permanent):
            return Failure(code=error.code, message=str(error), permanent=permanent)
        case Retry(after_s=after_s):
            return Failure(code=error.code, message=str(error), retry_after_s=after_s)
        case TurnError(permanent=permanent):
            text = _with_place(str(error), error) if error.is_bug else str(error)
            return Failure(code=error.code, message=text, permanent=permanent)
        case ToolRefused(reason=reason):
            text = f"a tool said no ({reason}), and the handler does not catch ToolRefused"
            return Failure(code=error.code, message=text)
        case MeshError():
            return Failure(code=error.code, message="the runtime could not go on")
    is_plain = isinstance(error, NotAMove | UnknownFact)
    text = _with_place(str(error), error) if is_plain else raised("the handler", error)
    return Failure(code="bug", message=text)


def raised(what: str, error: BaseException) -> str:
    """Describe an exception of a handler or a tool: its type, and the place in the author's code.

    The exception's own text may contain personal data. It is quoted only if `MESH_LOG_VALUES` allows that.
    """
    text = ""
    if shows_values():
        with contextlib.suppress(Exception):  # an author's `__str__` may raise, too
            text = short(str(error), _TEXT_CHARS)
    summary = _with_place(f"{what} raised {type(error).__name__}", error)
    return f"{summary}: {text}" if text else summary


def effect_broke(action: str, error: Exception) -> TurnError:
    """Return the error of a round whose effect raised: like a crash, since how far it came is unknown."""
    if isinstance(error, TurnError):
        return error
    unknown = EffectUnknown(raised(action, error))
    unknown.bug = error
    return unknown


def bug_behind(error: Exception | None) -> BaseException | None:
    """Return the exception whose traceback shows the mistake; None if the code reported how it failed."""
    if isinstance(error, TurnError):
        return error if error.is_bug else error.bug
    return None if isinstance(error, MeshError) else error


# --- a tool's refusal ----------------------------------------------------------------------------------


class ToolError(MeshError, code="tool.error"):
    """A tool cannot do what was asked, and did nothing. The text is for the model: tell it what would work.

    It is an outcome: the journal keeps it, and a turn that runs again gets it again, as a `ToolRefused`.
    """


class ToolRefused(ToolError, code="tool.refused"):
    """A tool's refusal as `turn.call` raises it, the first time and every time it is replayed.

    `reason` is the code of the error that the tool raised; `not_approved` or `approval_expired` if an effect
    waited for an approval and did not get it.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ToolTimedOut(ToolError, code="tool.timed_out"):
    """A tool that only reads took too long. It is an outcome, like a refusal."""


class NotBegun(ToolError, code="tool.not_begun"):
    """Nothing was run this time. It says nothing about an earlier attempt at the effect."""


class ToolBusy(NotBegun, code="tool.busy"):
    """Too many calls of this tool are under way and do not end; nothing was run."""


class ToolArgumentsInvalid(ToolError, code="tool.arguments_invalid"):
    """The arguments do not fit the tool's schema; nothing was run. The text names each mistake."""

    def __init__(self, tool: str, mistakes: tuple[str, ...]) -> None:
        super().__init__(f"{tool} was not called: {'; '.join(mistakes)}")
        self.tool, self.mistakes = tool, mistakes


# --- places in an author's code ---------------------------------------------------------------------

_INSTALLED = ("site-packages", "dist-packages")
_TEXT_CHARS = 200
"""Limit of an exception's own text in a message; the log has all of it."""


def _with_place(text: str, error: BaseException) -> str:
    place = where_raised(error)
    return f"{text}, at {place}" if place else text


def where_raised(error: BaseException) -> str:
    """Return the innermost place in an author's code that an error passed through; empty if there is none.

    It is `file.py:12 in handler`. It goes on the bus, so it holds no value and no whole path.
    """
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = ((code, line) for code, line in reversed(frames) if is_own(code.co_filename))
    code, line = next(own, (None, 0))
    if code is None:  # such as a tool that tried to end the process: its error is the cause of ours
        return "" if error.__cause__ is None else where_raised(error.__cause__)
    return place(code, line)


def where_defined(function: object) -> str:
    """Return where a function begins; empty if it is not an author's code."""
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
    """Return True for an author's own file: not installed, not Python's, and not the runtime's."""
    path = Path(filename).resolve()
    is_installed = any(part in _INSTALLED for part in path.parts)
    return path.is_file() and not is_installed and not any(map(path.is_relative_to, _libraries()))


def place(code: CodeType, line: int) -> str:
    """Return the place of a line, `file.py:12 in handler`: not the whole path, which names the machine."""
    file = Path(code.co_filename)
    here = Path.cwd()
    shown = file.relative_to(here) if file.is_relative_to(here) else Path(*file.parts[-2:])
    return f"{shown}:{line} in {code.co_name}"
