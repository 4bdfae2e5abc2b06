"""The journals' stream: a step is written once, by whoever is first, and never again.

That is what fences an instance that lost its turn without knowing: its next step is there already.
"""

from typing import ClassVar, Protocol

from mesh.bus.connection import Bus
from mesh.bus.roles import GET
from mesh.errors import MeshError, PublishRefused
from protocol.subjects import step

_TAKEN = 10077
"""JetStream: maximum messages per subject exceeded."""


class StepTaken(MeshError):
    """A step of this name was written before."""

    code: ClassVar[str] = "journal.step_taken"


class StepStore(Protocol):
    """The port: the steps of one agent's turns."""

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        """Return a step as it was written; None if it was not. Raises BusError."""

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        """Write a step. Raises StepTaken if it is there, OutcomeUnknown if nobody can say."""


class JetStreamSteps:
    """Steps in the stream STEPS, under the agent's own name."""

    def __init__(self, bus: Bus, agent: str) -> None:
        self._bus = bus
        self._agent = agent

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        found = await self._bus.request(f"{GET}STEPS.{step(self._agent, request, turn, name)}")
        return None if found.status == 404 else found.data

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        try:
            await self._bus.publish_durable(step(self._agent, request, turn, name), body)
        except PublishRefused as refused:
            if refused.err_code == _TAKEN:
                raise StepTaken(name) from None
            raise
