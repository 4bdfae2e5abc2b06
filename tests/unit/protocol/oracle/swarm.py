"""The oracle of swarms: who should get an offered task, and what each reader should be shown.

It knows the wire and nothing else of `protocol`. It says beforehand what should come of a claim, and finds
what is wrong with offers, turns and boards as they are written.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from protocol.wire import events as ev
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.handoff import Fact
from tests.unit.protocol.oracle.wrong import Early


@dataclass(eq=False)
class Offered:
    """A task that goes to whoever claims it."""

    name: str
    intent: str
    lead: str
    path: tuple[str, ...]
    """The lineage of its lead."""
    giver: AgentEntry | None
    readers: tuple[AgentEntry, ...]
    fallback: bool
    state: str = "planned"
    offer: str = ""
    """The newest."""
    offers: list[str] = field(default_factory=list)
    had: list[str] = field(default_factory=list)
    claim_by: int = 0
    offered_at: int = 0
    turn: str = ""
    called_off: bool = False
    again: bool = False
    """True once it was offered a second time."""
    asked: tuple[str, ...] = ()
    """To whom the newest offer is to go again, each in its own inbox."""
    copies: list[str] = field(default_factory=list)
    """Who got it so."""


@dataclass(eq=False)
class SwarmOracle:
    """What a request of a swarm should look like.

    Args:
        agents: the fleet's, by name.
    """

    agents: Mapping[str, AgentEntry]
    policy: Policy = field(default_factory=Policy)
    jobs: list[Offered] = field(default_factory=list)
    board: dict[tuple[str, str], Fact] = field(default_factory=dict)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each turn."""
    claims: dict[tuple[str, str], str] = field(default_factory=dict)
    """By offer and agent: what came of the claim, if it was decided."""
    waiting: list[tuple[str, str]] = field(default_factory=list)
    """Claims that wait for a thaw."""
    frozen_at: int | None = None
    over: str = ""
    wrong: list[str] = field(default_factory=list)

    served: dict[str, list[tuple[int, bool]]] = field(default_factory=dict)
    """By agent that was ever away: from when on (UTC µs) it was served, or not."""
    broken: set[str] | None = None
    """Agents whose breakers are not closed; None: neither this nor who was served is known."""

    # --- who is there -----------------------------------------------------------------------------

    def _could(self, job: Offered) -> list[str]:
        """Return who may claim a task, there or not."""
        return [
            one.name
            for one in job.readers
            if one.name not in (*job.had, *job.path)
            and (job.giver is None or job.giver.to is None or one.name in job.giver.to)
        ]

    def for_s(self, job: Offered, there: bool, now: int) -> float:
        """Return for how long (s) one who may claim a task has been there, or all of them have been away."""
        spans = [self.served.get(name, [(0, True)])[-1] for name in self._could(job)]
        if there:
            return max([(now - since) / 1e6 for since, served in spans if served], default=0.0)
        return 0.0 if any(served for _, served in spans) else min((now - since) / 1e6 for since, _ in spans)

    def _to_ask(self, job: Offered) -> set[str]:
        """Return to whom an offer that nobody claims is to go again now."""
        there = {name for name in self._could(job) if self.served.get(name, [(0, True)])[-1][1]}
        return there - (self.broken or set())

    # --- beforehand -------------------------------------------------------------------------------

    def job_of(self, offer: str) -> Offered | None:
        return next((job for job in self.jobs if offer in job.offers), None)

    def claimable_until(self, offer: str, at: int) -> int | None:
        """Return until when (UTC µs) an offer can be claimed, seen at `at`; None if it is not the newest."""
        job = self.job_of(offer)
        if job is None or offer != job.offer:
            return None
        stands = self.frozen_at is not None and self.frozen_at <= job.claim_by
        return at if stands else job.claim_by

    def opinion(self, offer: str, by: str, broken: bool) -> str:
        """Return what should come of a claim: a word, or the rule that refuses it."""
        job, entry = self.job_of(offer), self.agents[by]
        if job is None:
            return "unknown_turn"
        if (offer, by) in self.waiting and self.frozen_at is not None:
            return "move.deferred"
        if (offer, by) in self.claims:
            return "task.opened" if by in job.had else "decided"
        if self.over:
            return self.over
        if offer != job.offer or job.state != "offered" or job.called_off:
            return "ended"
        others = (one for one in self.jobs if one is not job and one.lead == job.lead)
        if any(one.state == "open" and one.had[-1] == by for one in others):
            return "busy"
        if self.frozen_at is not None:
            return "move.deferred"
        return self._rule(job, entry, broken) or "task.opened"

    def _rule(self, job: Offered, entry: AgentEntry, broken: bool) -> str:
        if broken:
            return "agent_available"
        may_have = job.giver is None or job.giver.to is None or entry.name in job.giver.to
        if job.intent not in (entry.intents or ()) or not may_have or entry.name in job.path:
            return "capable"
        return "claimed" if entry.name in job.had else ""

    # --- afterwards -------------------------------------------------------------------------------

    def take(self, event: ev.AnyEvent) -> None:
        """Take in an event, and note what is wrong with it."""
        self.wrong += [type(each)(f"{event.n}: {each}") for each in self._complaints(event)]
        self.learn(event)

    def _complaints(self, event: ev.AnyEvent) -> Iterator[str]:
        match event:
            case ev.TaskOffered(again=True):
                yield from self._again(event)
            case ev.TaskOffered(offer=offer):
                job = self._job(event.lead, event.name)
                if job.state != "planned" or event.to != f"any-{job.intent}" or event.id in job.offers:
                    yield "an offer that is not due, or in another inbox"
                shown = [*offer.handoff.facts, *(each.fact for each in offer.board)]
                for reader in job.readers:
                    yield from _unseen(shown, reader)
                common = set.intersection(*(set(one.clearance) for one in job.readers))
                yield from self._board(offer.board, common)
                if event.claim_by != event.at + int(self.policy.claim_within_s * 1e6):
                    yield "an offer that ends at another time"
            case ev.TaskOpened(work=work):
                reader = self.agents[event.to]
                yield from _unseen([*work.handoff.facts, *(each.fact for each in work.board)], reader)
                yield from self._board(work.board, set(reader.clearance))
                if not work.handoff.constraints.read_only:
                    yield "a task that may write"
            case ev.TaskFailed(error=error) if error.code == "unclaimed":
                late = self._job_of_turn(event.turn)
                if late is None or late.state != "offered" or event.at < late.claim_by:
                    yield Early("a task that fails before its time to be claimed is up")
                elif self.for_s(late, True, event.at) < self.policy.claim_within_s and self._could(late):
                    yield "a task that fails though nobody could claim it for so long"
                elif self.broken is not None and not late.asked and self._to_ask(late):
                    yield "a task that fails before it was offered again"
            case ev.TaskFailed(error=error) if error.code == "unattended" and not error.attempts:
                lone, hour_s = self._job_of_turn(event.turn), self.policy.unattended_after_s
                if lone is None or hour_s is None or self.for_s(lone, False, event.at) < hour_s:
                    yield "an offer given up though somebody could claim it"
            case ev.TurnResumed() | ev.TurnRetried() | ev.EscalationResolved() | ev.EffectSettled():
                yield from self._board(event.work.board, set(self.agents[event.to].clearance))

    def _again(self, event: ev.TaskOffered) -> Iterator[str]:
        """Find what is wrong with an offer that goes again, to one agent."""
        job, reader = self._job(event.lead, event.name), self.agents[event.to]
        if job.state != "offered" or event.offer.turn != job.offer or event.to in job.copies:
            yield "an offer that goes again to nobody's use"
        if event.grounds is not None:
            names, right = {one.entry.name for one in event.grounds.candidates}, self._to_ask(job)
            if (
                job.asked
                or event.to not in names
                or names - right
                or (self.broken is not None and right - names)
            ):
                yield f"an offer that goes again to {sorted(names)}, not to {sorted(right)}"
            if event.at < job.claim_by or self.for_s(job, True, event.at) < self.policy.claim_within_s:
                yield Early("an offer that goes again before its time is up")
        elif event.to not in job.asked:
            yield f"an offer that goes again to {event.to}"
        yield from _unseen([*event.offer.handoff.facts, *(each.fact for each in event.offer.board)], reader)
        yield from self._board(event.offer.board, set(reader.clearance))
        if event.claim_by != event.at + int(self.policy.claim_within_s * 1e6):
            yield "an offer that ends at another time"

    def _board(self, board: tuple[object, ...], clearance: set[str]) -> Iterator[str]:
        seen = [(by, fact) for (by, _), fact in self.board.items() if set(fact.labels) <= clearance]
        if [(each.by, each.fact) for each in board] != seen:  # type: ignore[attr-defined]
            yield f"shows {len(board)} facts of the board, and {len(seen)} may be seen"

    def at_rest(self, now: int) -> Iterator[str]:
        """Yield what is left undone, or done twice, once nothing is due."""
        if self.over:
            return
        for job in self.jobs:
            if self.frozen_at is None and job.state == "planned":
                yield f"{job.name} is not offered"
            could = not self._could(job) or self.for_s(job, True, now) >= self.policy.claim_within_s
            if self.frozen_at is None and job.state == "offered" and job.claim_by <= now and could:
                yield f"{job.name} waits for a claim beyond its time"
            if self.frozen_at is None and job.state == "offered" and set(job.copies) != set(job.asked):
                yield f"{job.name} went again to {job.copies} of {job.asked}"

    def offer_of(self, lead: str, name: str) -> str:
        """Return the newest offer of a task."""
        return self._job(lead, name).offer

    # --- learning ---------------------------------------------------------------------------------

    def _job(self, lead: str, name: str) -> Offered:
        return next(job for job in self.jobs if (job.lead, job.name) == (lead, name))

    def _job_of_turn(self, turn: str) -> Offered | None:
        return next((job for job in self.jobs if turn == job.turn or turn == job.offer), None)

    def learn(self, event: ev.AnyEvent) -> None:
        match event:
            case ev.RequestOpened():
                self.policy, self.paths[event.id] = event.policy, event.work.path
            case ev.EscalationResolved():
                self.paths[event.work.turn] = event.work.path
            case ev.TurnDelegated():
                for name in event.cancel:
                    self._job(event.turn, name).called_off = True
                self.jobs += self._planned(event)
            case ev.TaskOffered(again=True):
                job = self._job(event.lead, event.name)
                if event.grounds is not None:
                    job.asked = tuple(one.entry.name for one in event.grounds.candidates)
                job.copies.append(event.to)
                job.claim_by, job.offered_at = event.claim_by, event.at
            case ev.TaskOffered():
                job = self._job(event.lead, event.name)
                job.asked, job.copies = (), []
                job.state, job.offer, job.claim_by, job.offered_at = (
                    "offered",
                    event.id,
                    event.claim_by,
                    event.at,
                )
                job.offers.append(event.id)
            case ev.TaskOpened() if event.grounds is not None:
                job = self._job(event.lead, event.name)
                if job.state != "offered":
                    self.wrong.append(f"{event.n}: {job.name} is opened twice")
                job.state, job.turn = "open", event.id
                job.had.append(event.to)
                self._decided(job.offer, event.to, "task.opened")
            case ev.MoveDeferred() if self.job_of(event.turn) is not None:
                self.waiting.append((event.turn, event.sender))
            case ev.MoveRefused() if self.job_of(event.turn) is not None:
                assert event.grounds.sender is not None
                self._decided(event.turn, event.grounds.sender.name, str(event.refusal.rule))
            case ev.TaskDelivered() | ev.TaskFailed() | ev.TaskCancelled():
                self._ended(event)
            case ev.FactsPosted():
                for fact in event.facts:
                    self.board.pop((event.sender, fact.key), None)
                    self.board[event.sender, fact.key] = fact
            case ev.RequestFrozen():
                self.frozen_at = event.since or event.at
            case ev.RequestThawed():
                for job in self.jobs:
                    if job.state == "offered" and self.frozen_at is not None:
                        job.claim_by += event.at - max(self.frozen_at, job.offered_at)
                self.frozen_at = None
        if isinstance(event, ev.Ended):
            self.over = ev.type_of(event).partition(".")[2]

    def _decided(self, offer: str, by: str, what: str) -> None:
        self.claims[offer, by] = what
        self.waiting = [each for each in self.waiting if each != (offer, by)]

    def _planned(self, event: ev.TurnDelegated) -> Iterable[Offered]:
        for planned in event.tasks:
            if not planned.agent:
                intent = str(planned.task.intent)
                yield Offered(
                    name=planned.task.name,
                    intent=intent,
                    lead=event.turn,
                    path=self.paths[event.turn],
                    giver=event.grounds.sender,
                    readers=tuple(one for one in self.agents.values() if intent in (one.intents or ())),
                    fallback=planned.task.fallback,
                )

    def _ended(self, event: ev.TaskDelivered | ev.TaskFailed | ev.TaskCancelled) -> None:
        job = self._job_of_turn(event.turn)
        if job is None:
            return
        again = job.fallback and not (job.again or job.called_off) and event.turn == job.turn
        if isinstance(event, ev.TaskFailed) and again:
            job.state, job.again = "planned", True
        else:
            job.state = "ended"


def _unseen(shown: Iterable[Fact], reader: AgentEntry) -> Iterator[str]:
    for fact in shown:
        if not set(fact.labels) <= set(reader.clearance):
            yield f"{reader.name} reads {fact.key}, which it may not see"
