"""The check on dead letters: which of them a drill may rightly leave, and why."""

from collections.abc import Iterator

import msgspec

from protocol.wire.notices import DeadLetter
from tests.drill.findings import Breach
from tests.drill.reading import Reading

EXCUSED = {
    "frozen": "an order to freeze what is frozen: two people, or one who asked again under a new id",
    "not_frozen": "an order to thaw what runs: the same",
}
"""Dead letters that a drill may rightly leave, by code, and why."""


def no_dead_letters(reading: Reading) -> Iterator[Breach]:
    """Nobody put a message aside: everything that the drill's own parties say can be read and acted on.

    `EXCUSED` are not breaches. Nor is `unknown_request` about a control message: it may have overtaken its
    submit by more than the time that guards wait for that, when all of them were down; whoever sent it was
    told. About a proposal it is a breach: a turn of that request had been opened.
    """
    for letter in letters(reading):
        if letter is None:
            yield Breach(promise="no_dead_letters", request="", detail="a dead letter cannot be read")
        elif letter.code not in EXCUSED and not _overtook(letter):
            times = "1 delivery" if letter.delivered == 1 else f"{letter.delivered} deliveries"
            detail = f"{letter.code}, by {letter.by} after {times}"
            yield Breach(promise="no_dead_letters", request=letter.request, detail=detail)


def _overtook(letter: DeadLetter) -> bool:
    return letter.code == "unknown_request" and letter.subject.startswith("mesh.ctl.")


def letters(reading: Reading) -> Iterator[DeadLetter | None]:
    """Yield every dead letter; None for one that cannot be read."""
    for body in reading.evidence.dead:
        try:
            yield msgspec.json.decode(body, type=DeadLetter)
        except (msgspec.MsgspecError, UnicodeError):
            yield None
