"""The moves, which a turn's code returns. Each is a value, and nothing happens before it is returned.

A request's topology (`turn.topology`) fixes which moves there are; the guard refuses any other.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mesh.agent._reply_schema import check_schema
from mesh.agent.values import Facts, Remembered, facts_of, jsonable, remembered_of
from protocol.wire.handoff import Artifact, Constraints
from protocol.wire.ids import AgentName
from protocol.wire.moves import (
    FAILED,
    Ask,
    Complete,
    Delegate,
    Deliver,
    Escalate,
    Fail,
    HandBack,
    Join,
    Move,
    Task,
    Transfer,
)


class Moves:
    """The moves of a turn, as methods of `Turn`."""

    client: AgentName
    """Name of the request's submitter."""
    facts: Mapping[str, Any]
    """Facts by key, values only; `handoff.facts` also has the labels."""

    # --- topology `handoff` -----------------------------------------------------------------------

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
            facts: only new ones; values as in `complete`. The facts that were handed to this turn are carried
                on without being named.
            drop: keys of facts that are not carried on.
            constraints: only where they narrow this turn's own.
            return_to: the agent that a hand-back goes to, if it is on the path; by default this agent.
            no_return: no later agent may give the work back to this agent or to one before it.
        """
        return Transfer(
            to_agent=AgentName(to),
            summary=line(summary),
            intent=intent,
            facts=facts_of(facts),
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
        """Give the work back along the path, with what was found."""
        return HandBack(
            summary=line(reason),
            to_agent=None if to is None else AgentName(to),
            facts=facts_of(facts),
            artifacts=tuple(artifacts),
            drop=tuple(drop),
        )

    # --- topologies `supervised` and `swarm` --------------------------------------------------------

    def task(
        self,
        name: str,
        *,
        summary: str,
        to: str | None = None,
        intent: str | None = None,
        facts: Facts = None,
        artifacts: Sequence[Artifact] = (),
        carry: Iterable[str] | None = None,
        uses: Iterable[str] = (),
        revises: str = "",
        fallback: bool = False,
        constraints: Constraints | None = None,
    ) -> Task:
        """Return a task for `delegate`. By itself it is not a move.

        Args:
            name: unique in this turn, at most 128 characters; its result is `turn.results[name]`.
            summary: one line: what is wanted and why.
            to: the agent that does it. None: the guard picks an agent that takes the `intent`; in a swarm the
                task is offered to all of these.
            facts: only new ones; values as in `complete`.
            carry: keys of facts and names of artifacts that this turn was given and the task gets, too; None:
                all of them.
            uses: earlier tasks of this turn whose results the task is given.
            revises: the earlier task of this turn that this one does again; give the feedback as a fact.
            fallback: True if the guard may give the task, once, to another capable agent when it fails.
            constraints: only where they narrow this turn's own. Without a budget the task gets an equal
                share.
        """
        return Task(
            name=name,
            summary=line(summary),
            to_agent=None if to is None else AgentName(to),
            intent=intent,
            facts=facts_of(facts),
            artifacts=tuple(artifacts),
            carry=None if carry is None else tuple(carry),
            uses=tuple(uses),
            revises=revises,
            fallback=fallback,
            constraints=constraints or Constraints(),
        )

    def delegate(
        self,
        tasks: Iterable[Task] = (),
        *,
        join: Join = "all",
        within_s: float | None = None,
        cancel: Iterable[str] = (),
    ) -> Move:
        """Open tasks and suspend the turn until their join; the code runs again with `turn.results`.

        Args:
            tasks: from `turn.task`. None: wait for the open ones.
            join: `all`: no task is open. `any`: the first success that this turn has not seen yet. A number:
                that many successes. In any case the turn runs again once no task is open.
            within_s: seconds after which it runs again with the results so far; `turn.waiting` names the open
                tasks.
            cancel: open tasks of this turn to cancel.
        """
        return Delegate(tasks=tuple(tasks), join=join, within_s=within_s, cancel=tuple(cancel))

    def deliver(
        self,
        summary: str,
        *,
        facts: Facts = None,
        artifacts: Sequence[Artifact] = (),
        cancel_open: bool = False,
    ) -> Move:
        """End this task with its result, which the lead finds in its `turn.results`.

        Args:
            summary: one line: the result. Every reader sees it; put what needs labels into a fact.
            cancel_open: cancel the tasks that this turn itself still has open.
        """
        return Deliver(
            summary=line(summary),
            facts=facts_of(facts),
            artifacts=tuple(artifacts),
            cancel_open=cancel_open,
        )

    # --- any topology -------------------------------------------------------------------------------

    def ask(
        self,
        question: str,
        *,
        of: str | None = None,
        schema: Mapping[str, Any] | None = None,
        expires_s: float | None = None,
    ) -> Move:
        """Ask the client (or `human`) and suspend the turn; the code runs again with `turn.reply`.

        Raises SchemaUnusable for a schema that no reply can be checked against.
        """
        check_schema(schema)
        asked = AgentName(of) if of is not None else self.client
        return Ask(to_agent=asked, question=question, schema=schema, expires_s=expires_s)

    def complete(self, answer: Any, *, cancel_open: bool = False, remember: Remembered = None) -> Move:
        """Answer the request: a JSON value (usually a string), a pydantic object, a dataclass or a msgspec
        struct.

        Args:
            cancel_open: cancel the tasks that are still open; without it, an answer waits for them.
            remember: what later requests of the same conversation begin with: new facts as for `transfer`,
                or keys of facts of this turn (`remember={"order": 7}`, `remember=["order"]`). Without a
                conversation nothing is remembered.

        Raises TypeError for any other answer, and UnknownFact for a key that this turn was not given.
        """
        facts, keys = remembered_of(remember)
        for key in keys:
            self.facts[key]  # raises UnknownFact, with the known keys
        return Complete(
            answer=jsonable(answer, "answer"), cancel_open=cancel_open, remember=facts, remember_keys=keys
        )

    def escalate(self, reason: str, *, facts: Facts = None) -> Move:
        """Give the work to a person."""
        return Escalate(summary=line(reason), facts=facts_of(facts))

    def fail(self, reason: str, code: str = FAILED) -> Move:
        """Give the request up. In a task, give up the task alone: its lead gets the failure.

        Args:
            code: your own, for leads and clients to tell failures apart: `a-z 0-9 _ .`, 64 characters at
                most.
        """
        return Fail(reason=reason, code=code)


def line(text: str) -> str:
    """Return a text as a single line."""
    return " ".join(text.split())
