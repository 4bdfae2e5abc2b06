"""A round built again from its journal, to see the prompts that its model got; nothing is done anew.

The agent's own code runs over the recorded steps, and stops where they end: no tool is called, no model is
asked, nothing is written. A prompt that comes out with the digest that was recorded is the one that was sent,
to the letter. At the first other prompt the journal stops the code: later prompts are not known.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from mesh.agent._execution import Execution
from mesh.agent._journal import Journal, Produce
from mesh.agent._step_store import Call, digest_of
from mesh.agent.definition import Agent
from mesh.agent.errors import TurnError
from mesh.agent.turn import Turn
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Assignment
from protocol.wire.records import Record, decode_record

T = TypeVar("T")


class JournalEnds(TurnError, code="journal.ends"):
    """The code wants a step that was never recorded."""


class Sent(NamedTuple):
    """One prompt of the round."""

    prompt: Any
    name: str
    """The model's, as recorded."""
    digest: str
    """The prompt's as it came out here."""
    record: Record | None
    """The recorded reply to this very prompt; None if there is none."""

    @property
    def exact(self) -> bool:
        """True if this is what was sent."""
        return self.record is not None


class Rebuilt(NamedTuple):
    """The prompts of a round's code, over its journal."""

    sent: tuple[Sent, ...]
    """Its prompts in order, those of earlier rounds' conversation included; the last may not be exact."""
    version: str
    """The agent's that began the round; empty if it recorded nothing."""
    ended: str
    """Why the code stopped; empty if it came to its end."""


async def rebuild(
    agent: Agent, request: str, work: Assignment, fleet: Fleet, steps: Mapping[str, bytes]
) -> Rebuilt:
    """Return the prompts of one round, by running the agent's code over its journal.

    Args:
        work: the round.
        fleet: whom the agent may hand to, where its journal does not say.
        steps: the turn's journal: stored steps by name, `<round>-<n>`.
    """
    journal = _Recorded(
        _Store(steps),
        request=request,
        turn=work.journal_id,
        round_=work.round,
        nonce="",
        version=agent.version,
        past=work.past,
    )
    replies = [record for body in steps.values() if (record := decode_record(body)).kind == "model"]
    execution = _Execution(request, work, fleet, journal, replies)
    ended = ""
    try:
        await agent(Turn(execution))
    except Exception as error:
        broken = journal.broken or error
        ended = str(broken) if isinstance(broken, TurnError) else f"the code broke: {type(broken).__name__}"
    return Rebuilt(tuple(execution.sent), journal.version or "", ended)


class _Store:
    """Steps as they were stored; there are no others."""

    def __init__(self, steps: Mapping[str, bytes]) -> None:
        self._steps = steps

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        return self._steps.get(name)

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        raise JournalEnds(f"step {name} was never recorded")


class _Recorded(Journal):
    """A journal that brings nothing about."""

    async def _produced(self, call: Call, produce: Produce, *rest: Any, **named: Any) -> Record:
        what = f"{call[0]} {call[1]}".strip()
        raise self.stop(JournalEnds(f"the journal ends here: {what} was never recorded"))


class _Execution(Execution):
    """A round that keeps the prompts which its code would send.

    Args:
        replies: the turn's model's, of all its rounds.
    """

    def __init__(
        self, request: str, work: Assignment, fleet: Fleet, journal: Journal, replies: list[Record]
    ) -> None:
        super().__init__(request, work, fleet, journal)
        self.sent: list[Sent] = []
        self._replies = replies

    def knows(self, name: str, prompt: Any) -> bool:
        digest = digest_of(prompt)
        return any(record.digest == digest for record in self._replies)

    async def model(
        self, name: str, prompt: Any, produce: Produce, kind: type[T], **named: Any
    ) -> tuple[T, bool]:
        digest = digest_of(prompt)
        said = next((record for record in self._replies if record.digest == digest), None)
        known = said or next(iter(self._replies), None)
        name = known.name if known is not None else name  # here another model may be the agent's
        self.sent.append(Sent(prompt, name, digest, said))
        return await super().model(name, prompt, produce, kind, **named)
