"""The moves as methods: each returns a value, and nothing happens before the code returns it."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mesh.agent._reply_schema import check_schema
from protocol.wire.commands import Ask, Complete, Escalate, Fail, HandBack, Move, Transfer
from protocol.wire.handoff import Artifact, Constraints, Fact
from protocol.wire.ids import AgentName

Facts = Mapping[str, Any] | Iterable[Fact] | None


class Moves:
    """What a turn can ask for."""

    @property
    @abstractmethod
    def client(self) -> AgentName:
        """Who submitted the request."""

    def transfer(
        self,
        to: str,
        *,
        summary: str,
        intent: str | None = None,
        facts: Facts = None,
        artifacts: Sequence[Artifact] = (),
        drop: Sequence[str] = (),
        constraints: Constraints | None = None,
        return_to: str | None = None,
        no_return: bool = False,
    ) -> Move:
        """Give the work to another agent.

        Args:
            summary: one line: what is wanted and why.
            facts: what is new. What was handed to this turn is carried on by itself.
            drop: keys of facts not to carry on.
            constraints: only where they narrow this turn's own.
            return_to: whom a hand-back goes to, if on the path; by default to this agent.
            no_return: nobody from there on gives the work back to this agent or beneath.
        """
        return Transfer(
            to_agent=AgentName(to),
            summary=_line(summary),
            intent=intent,
            facts=_facts(facts),
            artifacts=tuple(artifacts),
            drop=tuple(drop),
            constraints=constraints or Constraints(),
            return_to=None if return_to is None else AgentName(return_to),
            no_return=no_return,
        )

    def hand_back(
        self,
        reason: str,
        *,
        to: str | None = None,
        facts: Facts = None,
        artifacts: Sequence[Artifact] = (),
        drop: Sequence[str] = (),
    ) -> Move:
        """Give the work back along the path, with what was found out."""
        return HandBack(
            summary=_line(reason),
            to_agent=None if to is None else AgentName(to),
            facts=_facts(facts),
            artifacts=tuple(artifacts),
            drop=tuple(drop),
        )

    def ask(
        self,
        question: str,
        *,
        of: str | None = None,
        schema: Mapping[str, Any] | None = None,
        expires_s: float | None = None,
    ) -> Move:
        """Ask the client (or `human`) and suspend the turn; the code runs again with `turn.reply`.

        Raises SchemaUnusable for a schema by which no reply could be judged.
        """
        check_schema(schema)
        asked = AgentName(of) if of is not None else self.client
        return Ask(to_agent=asked, question=question, schema=schema, expires_s=expires_s)

    def complete(self, answer: Any) -> Move:
        """Answer the request; any JSON value, mostly a string."""
        return Complete(answer=answer)

    def escalate(self, reason: str, *, facts: Facts = None) -> Move:
        """Give the work to a person."""
        return Escalate(summary=_line(reason), facts=_facts(facts))

    def fail(self, reason: str) -> Move:
        """Give the request up."""
        return Fail(reason=reason)


def _line(text: str) -> str:
    return " ".join(text.split())


def _facts(facts: Facts) -> tuple[Fact, ...]:
    if facts is None:
        return ()
    if isinstance(facts, Mapping):
        return tuple(Fact(key=key, value=value) for key, value in facts.items())
    return tuple(facts)
