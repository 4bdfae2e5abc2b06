"""The failpoints that the product has, and how they are armed in a directory, taken back and found claimed.

`mesh.service.failpoints` marks each place and obeys what is armed there.
"""

import json
from pathlib import Path
from typing import Literal, NamedTuple


class Failpoint(NamedTuple):
    """One place."""

    name: str
    """`<kind of process>.<place>`."""
    written: str
    """What is written already."""
    unwritten: str
    """What is not written yet, and must come of it all the same, once."""
    lane: bool = False
    """True if processes come by only where the fleet has a lane."""


class UnknownFailpoint(ValueError):
    """No failpoint has this name."""


FAILPOINTS: dict[str, Failpoint] = {
    failpoint.name: failpoint
    for failpoint in (
        Failpoint("turn.taken", "the inbox event was delivered", "anything of the turn"),
        Failpoint("turn.fenced", "fences behind the earlier rounds", "the first step of the new round"),
        Failpoint("step.ran", "a reading tool or the model has answered", "the answer's record"),
        Failpoint("effect.intended", "an effect's intent", "the effect itself"),
        Failpoint("effect.ran", "the effect, in the world outside", "its result's record"),
        Failpoint("step.recorded", "a step's record", "anything that uses its value"),
        Failpoint("turn.journaled", "every step of the round", "the proposal"),
        Failpoint("turn.proposed", "the proposal", "the inbox event's acknowledgement"),
        Failpoint("post.stored", "a post for the board, in its queue", "the step that says so"),
        Failpoint(
            "offer.claimed", "a claim, in its queue", "what came of it, and the offer's acknowledgement"
        ),
        Failpoint("lane.undecided", "a question, to no avail", "the proposal in its queue", lane=True),
        Failpoint("guard.asked", "nothing: the guard alone was asked", "the verdict", lane=True),
        Failpoint("guard.answers", "the verdict, and all that follows", "the guard's answer", lane=True),
        Failpoint("guard.heard", "a proposal or an order, in its queue or asked", "the verdict"),
        Failpoint("guard.withheld", "`facts.withheld`", "the verdict that it belongs to"),
        Failpoint("guard.decided", "the verdict", "its consequence, timer and acknowledgement"),
        Failpoint("guard.due", "an event with a consequence", "the consequence, which is due"),
        Failpoint("guard.followed", "the consequence", "the next one, timer and acknowledgement"),
        Failpoint(
            "guard.ended",
            "the event that ends a turn from outside",
            "the message at `mesh.end.…` that tells its agent",
        ),
        Failpoint("guard.asks", "a question to a client, or what ends one", "the list of its open questions"),
        Failpoint(
            "guard.remembers", "the answer of a request in a conversation", "the record of what it leaves"
        ),
        Failpoint("guard.armed", "events and timer", "the acknowledgement"),
        Failpoint("guard.fired", "a fired timer, in its queue", "what is due"),
    )
}
"""Every failpoint by name."""


class Claim(NamedTuple):
    """An armed failpoint that a process reached."""

    failpoint: str
    pid: int
    at: int
    """UTC µs."""


def arm(directory: Path, name: str, *, passes: int = 0, do: Literal["kill", "stop"] = "kill") -> None:
    """Let the next process that reaches a failpoint kill or stop itself there.

    Args:
        passes: how often a process may go through first; each counts its own.

    Raises UnknownFailpoint.
    """
    if name not in FAILPOINTS:
        raise UnknownFailpoint(f"no such failpoint: {name!r}; one of {', '.join(FAILPOINTS)}")
    whole = directory / f".{name}.new"
    whole.write_text(json.dumps({"passes": passes, "do": do}))
    whole.rename(directory / name)  # nobody sees half of it


def disarm(directory: Path, name: str) -> bool:
    """Take an armed failpoint back; False if a process has claimed it."""
    try:
        (directory / name).unlink()
    except FileNotFoundError:
        return False
    return True


def claims(directory: Path) -> list[Claim]:
    """Return the claims that lie in a directory."""
    found = []
    for path in directory.iterdir():
        name, _, pid = path.name.rpartition(".")
        if name in FAILPOINTS and pid.isdecimal():
            at = json.loads(path.read_text()).get("at", path.stat().st_ctime_ns // 1000)
            found.append(Claim(name, int(pid), at))
    return found
