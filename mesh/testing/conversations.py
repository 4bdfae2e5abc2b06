"""What conversations remember, in memory: shared by the guards of one test.

memory = Conversations()
first = InMemoryGuard(fleet, memory=memory)
second = InMemoryGuard(fleet, memory=memory, number=2)    # begins with what the first one left
"""

from typing import Any

from protocol.domain.memory import living, recalled, supersedes
from protocol.domain.steps import Remember
from protocol.wire.handoff import Fact
from protocol.wire.memory import MemoryRecord


class Conversations:
    """The memory of every client, by the rules that a real guard keeps."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], dict[str, MemoryRecord]] = {}

    def facts(self, client: str, conversation: str) -> dict[str, Any]:
        """Return what a conversation remembers, by key, however old it is."""
        standing = living(self._of(client, conversation).values(), 0, 0.0)
        return {record.key: record.fact.value for record in standing if record.fact is not None}

    def forget(self, client: str, conversation: str) -> None:
        """Forget all of a conversation."""
        self._records.pop((client, conversation), None)

    def recall(self, client: str, conversation: str | None, now: int, max_age_s: float) -> tuple[Fact, ...]:
        """Return what a request of the conversation begins with. `now` is UTC µs."""
        if conversation is None:
            return ()
        return recalled(self._of(client, conversation).values(), now, max_age_s)

    def remember(self, client: str, step: Remember) -> None:
        """Take in what a request ended with."""
        known = self._of(client, step.conversation)
        for record in step.records:
            if supersedes(record, known.get(record.key)):
                known[record.key] = record

    def _of(self, client: str, conversation: str) -> dict[str, MemoryRecord]:
        return self._records.setdefault((client, conversation), {})
