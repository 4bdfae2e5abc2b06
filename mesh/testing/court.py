"""A guard in memory: the verdicts are those of a real one, without a bus, for one request.

    court = Court(fleet)
    court.submit("Where is my parcel?")                                   # given
    verdict = court.move(transfer)                                        # when
    assert verdict.refusal.rule == "cycle"                                # then

Time stands still until `wait`. What a real guard would append by itself is appended here, too: retries,
escalations, expiries. `Court.given` takes up a log where it ended.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from protocol.control import objection_to, resolves_to
from protocol.decide import decide, target_of
from protocol.domain.held import Turn
from protocol.domain.labelling import labelled
from protocol.due import by_the_clock, due
from protocol.ledger import Ledger
from protocol.standing import Fit, Late, Objection, standing
from protocol.wire import codec
from protocol.wire.commands import (
    Control,
    Failure,
    Hearing,
    Move,
    MoveProposed,
    Proposal,
    Reply,
    Report,
    Resolve,
    Submit,
    TurnFailed,
    id_of,
    submit_id,
)
from protocol.wire.config import Fleet, Policy
from protocol.wire.events import AnyEvent, FactsWithheld
from protocol.wire.ids import HUMAN, AgentName, Cause, RequestId, control_cause, request_id
from protocol.world import Grounds, World

START_US = 1_800_000_000_000_000
"""When every court begins (UTC µs)."""
_MOST_DUE = 50

Ruling = AnyEvent | Late | Objection


class NotDecided(AssertionError):
    """A message became no event: it came too late, or a guard would have objected to it."""


class Court:
    """One request, judged.

    Args:
        fleet: who exists, as guards know it.
        policies: by name; the submit says which one it wants.
        prices: what models cost, by id: a fleet file's `prices_of(file)`, or `protocol.wire.prices.Price`s.
        number: tells the requests of one test apart.
        served: returns True if anybody runs an agent. It is asked before time passes, and after.
    """

    def __init__(
        self,
        fleet: Fleet,
        policies: Mapping[str, Policy] | None = None,
        *,
        prices: Mapping[str, Any] | None = None,
        number: int = 1,
        served: Callable[[str], bool] = lambda agent: True,
    ) -> None:
        self.fleet = fleet
        self.policies = dict(policies or {"default": Policy()})
        self.client = fleet.clients[0] if fleet.clients else AgentName("client")
        self.request: RequestId = request_id(self.client, START_US // 1000, number.to_bytes(10))
        self.now = START_US
        """UTC µs."""
        self.ledger = Ledger()
        self.events: list[AnyEvent] = []
        self.bodies: list[bytes] = []
        self._prices: dict[str, Any] = msgspec.to_builtins(dict(prices or {}))
        self._served = served
        self._seen: dict[str, tuple[bool, int]] = {}
        self._said = 0

    @classmethod
    def given(cls, bodies: Iterable[bytes], fleet: Fleet) -> "Court":
        """Return a court that goes on where a log of one request ended. Raises as `codec.decode_event`."""
        court = cls(fleet)
        for body in bodies:
            court._take(codec.decode_event(body), body)
        if court.events:
            court.request, court.now = court.events[-1].request, court.events[-1].at
        if court.ledger.client is not None:
            court.client = court.ledger.client
        return court

    @property
    def holder(self) -> Turn:
        """Whose turn it is. Raises NotDecided when it is nobody's."""
        turn = self.ledger.holder
        if turn is None:
            raise NotDecided(f"nobody holds the request: it is {self.ledger.status}")
        return turn

    # --- what may be said -------------------------------------------------------------------------

    def submit(self, text: str, **rest: Any) -> AnyEvent:
        """The client submits; `rest` are further fields of a submit. Returns the event that decided it."""
        what = Submit(text=text, **rest)
        cause = Cause(submit_id(self.request))
        digest = codec.body_digest(codec.encode(what))
        return self._event(self.hear(Hearing(self.request, self.client, what, cause, "client", digest)))

    def move(self, move: Move, report: Report | None = None) -> AnyEvent:
        """The holder asks for a move. Returns the verdict."""
        turn = self.holder
        return self.propose(
            MoveProposed(turn=turn.id, round=turn.round, move=move, report=report or Report())
        )

    def fail(self, code: str = "bug", *, permanent: bool = False) -> AnyEvent:
        """The holder's turn breaks."""
        turn = self.holder
        error = Failure(code=code, message="it broke", permanent=permanent)
        return self.propose(TurnFailed(turn=turn.id, round=turn.round, error=error))

    def propose(self, proposal: Proposal) -> AnyEvent:
        """Judge a proposal under the name of whoever's turn it speaks for."""
        sender = self.ledger.turns[proposal.turn].agent
        cause = Cause(id_of(self.request, proposal))
        return self._event(self.hear(Hearing(self.request, sender, proposal, cause, "agent")))

    def reply(self, value: Any, by: str = "somebody") -> AnyEvent:
        """Whoever was asked replies."""
        turn = self.holder
        asked = turn.asked or self.client
        said = Reply(id=self._id(), turn=turn.id, round=turn.round, value=value, by=by)
        return self.say(said, asked if asked in self.fleet.clients else self._operator())

    def resolve(self, by: str = "somebody", **rest: Any) -> AnyEvent:
        """A person decides an escalation: `to=…`, `again=True`, or `complete=True, answer=…`."""
        return self.say(Resolve(id=self._id(), turn=self.holder.id, by=by, **rest), self._operator())

    def say(self, control: Control, sender: str) -> AnyEvent:
        """Obey a control message. Raises NotDecided where a guard would not."""
        cause = control_cause(self.request, sender, control.id)
        role: Any = "client" if sender in self.fleet.clients else "operator"
        return self._event(self.hear(Hearing(self.request, AgentName(sender), control, cause, role)))

    def wait(self, seconds: float) -> list[AnyEvent]:
        """Let time pass; return what fell due."""
        self._look()
        self.now += round(seconds * 1e6)
        before = len(self.events)
        self._finish(None)
        return self.events[before:]

    # --- as a guard does --------------------------------------------------------------------------

    def hear(self, hearing: Hearing) -> Ruling:
        """Decide one message, what is due before it and what follows from it."""
        hearing = labelled(hearing, self.fleet.labels)
        what = hearing.what
        self._finish((what.turn, what.round) if isinstance(what, Proposal) else None)
        ruling = self._rule(hearing)
        self._finish(None)
        return ruling

    def _rule(self, hearing: Hearing) -> Ruling:
        found = standing(self.ledger, hearing)
        if not isinstance(found, Fit):
            return found
        while True:
            world = self._world(hearing)
            objection = objection_to(self.ledger, hearing, world)
            if objection is not None:
                return objection
            event = decide(self.ledger, hearing, world.policy, world)
            self._take(event, codec.encode(event))
            if not isinstance(event, FactsWithheld):
                return event

    def _finish(self, deciding: tuple[str, int] | None) -> None:
        for _ in range(_MOST_DUE):
            self._look()
            asked = by_the_clock(self.ledger, None, self.now, deciding)
            world = World(now=self.now, salt=self._salt, grounds=self._grounds(asked))
            follows = due(self.ledger, None, world, deciding)
            if follows is None:
                return
            if isinstance(follows, Hearing):
                self._rule(follows)
            else:
                self._take(follows, codec.encode(follows))
        raise NotDecided(
            f"what is due comes to no end: {[type(event).__name__ for event in self.events[-5:]]}"
        )

    def _look(self) -> None:
        """Note who is served, and since when, as a real guard does all the time."""
        for turn in self.ledger.open.values():
            if turn.agent == HUMAN:
                continue
            served = self._served(turn.agent)
            if self._seen.get(turn.agent, (None, 0))[0] is not served:
                self._seen[turn.agent] = (served, self.now)

    def _grounds(self, turn: Turn | None) -> Grounds:
        """Return what is known of a turn that may have to end by the clock."""
        if turn is None:
            return Grounds(human=self.fleet.human)
        served, since = self._seen[turn.agent]
        unbegun = not served and since <= turn.clock
        return Grounds(human=self.fleet.human, served=served, served_since=since, unbegun=unbegun)

    def _take(self, event: AnyEvent, body: bytes) -> None:
        self.ledger.apply(event, body)
        self.events.append(event)
        self.bodies.append(body)

    def _world(self, hearing: Hearing) -> World:
        what = hearing.what
        target = target_of(self.ledger, hearing)
        if isinstance(what, Submit):
            target = what.to or self.fleet.entry
        elif isinstance(what, Resolve):
            target = resolves_to(self.ledger, what)
        is_submit = isinstance(what, Submit)
        return World(
            now=self.now,
            salt=self._salt,
            grounds=Grounds(
                fleet=self.fleet.revision,
                sender=self.fleet.agents.get(hearing.sender),
                target=None if target is None else self.fleet.agents.get(target),
                human=self.fleet.human,
            ),
            policy=self.policies.get(what.policy) if isinstance(what, Submit) else self.ledger.policy,
            prices=self._prices if is_submit else None,
        )

    @property
    def _salt(self) -> str:
        return f"{len(self.events):032x}"

    def _id(self) -> str:
        self._said += 1
        return f"said-{self._said}"

    def _operator(self) -> str:
        return self.fleet.operators[0] if self.fleet.operators else "operator"

    @staticmethod
    def _event(ruling: Ruling) -> AnyEvent:
        if isinstance(ruling, Late):
            raise NotDecided(f"too late: {ruling.ended}")
        if isinstance(ruling, Objection):
            raise NotDecided(f"{ruling.code}: {ruling.detail}")
        return ruling
