"""How large the messages of one request are, so that the ring sends as many bytes as the mesh does."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from protocol.wire.ids import NOBODY


class Sizes(msgspec.Struct, frozen=True):
    """Bytes of headers and body together."""

    proposals: dict[str, int]
    """By sender; the client's is its submit."""
    events: dict[str, int]
    """By addressee; the client's is the answer, and nobody's is what the answer does not tell the client."""
    timer: int

    @property
    def publishes(self) -> int:
        """How many durable publishes a request takes."""
        return len(self.proposals) + len(self.events) + 1


@dataclass
class Sample:
    """What went by."""

    proposals: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    timers: list[int] = field(default_factory=list)
    steps: int = 0

    def take(self, message: Incoming) -> None:
        _, kind, name, *_ = message.subject.split(".")
        size = len(message.head) + len(message.data)
        if kind == "timer":
            self.timers.append(size)
        elif kind == "step":
            self.steps += 1
        else:
            (self.proposals if kind == "prop" else self.events)[name] = size

    def sizes(self) -> Sizes:
        """Return what was seen. Raises ValueError unless it was one whole request that the ring can match.

        A journalled step is a durable publish too, and the ring has none: better no figure than a wrong one.
        """
        addressed = self.events.keys() - {NOBODY}
        if self.steps or len(self.timers) != 1 or addressed != self.proposals.keys():
            raise ValueError(f"not one whole request: {self}")
        return Sizes(self.proposals, self.events, self.timers[0])


@contextlib.asynccontextmanager
async def sampled(admin: Bus) -> AsyncIterator[Sample]:
    """Listen to what is published to the streams."""
    sample = Sample()
    heard = [
        await admin.subscribe(subject, sample.take)
        for subject in ("mesh.prop.*.*", "mesh.evt.*.*", "mesh.timer.at.*", "mesh.step.*.*.*.*")
    ]
    try:
        yield sample
    finally:
        for subscription in heard:
            await subscription.close()
