"""The stream of an agent's journals. Each step is written once and never replaced.

This fences an instance that lost its turn without noticing: its next step exists already.
"""

from typing import ClassVar, Protocol

from mesh.bus.connection import Bus
from mesh.bus.roles import GET
from mesh.bus.streams import steps_of
from mesh.errors import MeshError, StreamFull, SubjectTaken
from protocol.wire.subjects import step


class StepTaken(MeshError):
    """A step of this name exists already."""

    code: ClassVar[str] = "journal.step_taken"


class StepStore(Protocol):
    """The port: the steps of one agent's turns."""

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        """Return the bytes of a step; None if there is none."""

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        """Write a step. Raises StepTaken if it exists, also from an earlier try of this call."""


class JetStreamSteps:
    """Steps in the agent's own stream, `STEPS-<agent>`.

    A call waits while the bus is unavailable or the stream is full. No turn fails because of that.
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
                raise StepTaken(name) from None  # the server has one code for both
            raise
        except SubjectTaken:
            raise StepTaken(name) from None
