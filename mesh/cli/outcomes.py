"""How a request's end is said: the answer on standard output, the rest on standard error, and a status."""

from typing import TYPE_CHECKING, Any

import typer

from mesh.cli.exits import Exit
from mesh.cli.output import one_line, remark, say

if TYPE_CHECKING:
    from mesh.client import Outcome

STATUSES = {"completed": Exit.DONE, "refused": Exit.REFUSED}
"""Every other end is a failure."""


def in_words(answer: Any) -> str:
    """Return an answer as people read it: text as it is, everything else as JSON."""
    import msgspec

    return answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()


def conclude(outcome: "Outcome") -> None:
    """Say how a request ended, and end the command with the status for it."""
    if outcome.status == "completed":
        say(in_words(outcome.answer), lines=True)
    else:
        ended = _ended(outcome.status, outcome.reason)
        remark(f"mesh: {outcome.request} was {one_line(ended)}")
    leave(outcome.status)


def leave(status: str) -> None:
    """End the command with the exit status for a request's end, unless all is well."""
    code = STATUSES.get(status, Exit.FAILED)
    if code is not Exit.DONE:
        raise typer.Exit(code)


def _ended(status: str, reason: str) -> str:
    """Return how and why a request ended; no reason says the status again."""
    if reason.startswith(f"{status} "):
        return reason  # cancelled by …
    said = {"failed": "given up", "expired": "too late"}.get(status, status)
    why = "" if reason == status else reason.removeprefix(f"{status}: ")
    return f"{said}: {why}" if why else said
