"""The stream of an agent's journals: a step is written once, by whoever is first, and never again.

That is what fences an instance that lost its turn without knowing: its next step is there already.
"""

from typing import ClassVar, Protocol

from mesh.bus.connection import Bus
from mesh.bus.roles import GET
from mesh.bus.streams import steps_of
from mesh.errors import MeshError, StreamFull, SubjectTaken
from protocol.wire.subjects import step


class StepTaken(MeshError):
    """A step of this name was written before."""

    code: ClassVar[str] = "journal.step_taken"


class StepStore(Protocol):
    """The port: the steps of one agent's turns."""

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        """Return a step as it was written; None if it was not."""

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        """Write a step. Raises StepTaken if it is there, be it by an earlier try of this very call."""


class JetStreamSteps:
    """Steps in the agent's own stream, `STEPS-<agent>`.

    While the bus is away, in trouble, or the stream is full, a call waits: no turn fails of that.
    """

    def __init__(self, bus: Bus, agent: str) -> None:
        self._bus = bus
        self._agent = agent

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        subject = f"{GET}{steps_of(self._agent)}.{step(self._agent, request, turn, name)}"
        found = await self._bus.retry_unavailable(lambda: self._bus.request(subject))
        return None if found.status == 404 else found.data

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        await self._bus.retry_unavailable(lambda: self._put(request, turn, name, body))

    async def _put(self, request: str, turn: str, name: str, body: bytes) -> None:
        try:
            await self._bus.publish_durable(step(self._agent, request, turn, name), body)
        except StreamFull:
            if await self.get(request, turn, name) is not None:
                raise StepTaken(name) from None  # the server has one code for both, and only its words differ
            raise
        except SubjectTaken:
            raise StepTaken(name) from None
