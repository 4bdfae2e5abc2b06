"""Every small world: all sequences of moves, each verdict checked by an oracle of its own.

A refused move changes nothing but the round (a test says so), hence a world goes on from its admitted
moves alone; and since depth bounds these, the worlds of a `max_depth` are *all* of them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from protocol.domain import rules
from protocol.domain import verdict as deciding
from protocol.domain.carried import NOTHING
from protocol.domain.case import Case
from protocol.domain.decider import RequestDecider
from protocol.domain.ledger import fold
from protocol.domain.turns import Segment
from protocol.wire import codec
from protocol.wire.commands import Command, MoveProposed, id_of
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent, HandoffAdmitted
from protocol.wire.handoff import Fact, Refusal, Rule
from protocol.wire.ids import AgentName, Cause
from protocol.wire.moves import HandBack, Move, Transfer
from tests.unit.protocol.oracle.account import Account, learn
from tests.unit.protocol.oracle.audit import complaints
from tests.unit.protocol.oracle.opinion import opine
from tests.unit.protocol.worlds import REQUEST, Play, agents, fact, hand_back, transfer

NAMES = ("a", "b", "c")
FLEET = agents(NAMES)
OLD = Fact(key="text", value="help me")


def moves(n: int, *, named: bool) -> Iterator[Move]:
    """Yield every move of the small alphabet; what is new is new to the n-th event.

    Args:
        named: say where a hand-back goes, too.
    """
    new = fact("n", n)
    for to in NAMES:
        for facts in ((OLD,), (new,)):
            for return_to in (None, AgentName("a"))[: 1 + named]:
                for no_return in (False, True):
                    yield transfer(to, *facts, return_to=return_to, no_return=no_return)
    for back_to in (None, "a", "b")[: 1 + 2 * named]:
        yield hand_back(to=back_to)
        yield hand_back(new, to=back_to)


def judge(play: Play, move: Move) -> tuple[MoveProposed, AnyEvent]:
    """Return the holder's proposal of `move` and the verdict on it, which is not appended.

    So all moves of one place are judged on one ledger: deciding never changes it.
    """
    turn = play.holder
    proposal = MoveProposed(turn=turn.id, round=turn.round, move=move)
    command = Command(REQUEST, turn.agent, proposal, Cause(id_of(REQUEST, proposal, turn.agent)), "agent")
    event = play.first_event(command)
    assert codec.decode_event(codec.encode(event)) == event
    return proposal, event


class SmallWorlds:
    """All worlds of one `max_depth`; up to 3 of them, hand-backs are named as well."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.named = max_depth <= 3
        self.verdicts: Counter[str] = Counter()
        self.complaints: list[str] = []
        play = Play(fleet=FLEET, policy=Policy(max_depth=max_depth))
        opened = play.submit()
        self.root = [opened]
        self.account = learn(Account(), opened)

    def explore(self, stop_at_first: bool = False) -> "SmallWorlds":
        self._from(self.root, self.account, stop_at_first)
        return self

    def _from(self, events: list[AnyEvent], account: Account, stop: bool) -> None:
        policy = Policy(max_depth=self.max_depth)
        play = Play(fleet=FLEET, policy=policy, decider=RequestDecider(fold(events)))
        for move in moves(len(events), named=self.named):
            if stop and self.complaints:
                return
            proposal, event = judge(play, move)
            found = complaints(account, proposal, event)
            self.complaints += [f"{account.path} {move}: {each}" for each in found]
            self.verdicts[getattr(event.refusal, "rule", "admitted")] += 1
            if isinstance(event, HandoffAdmitted) and not self.complaints:
                opinion = opine(account, proposal, event.grounds, event.at)
                self._from([*events, event], learn(account, event, opinion.handoff), stop)


@pytest.mark.parametrize(("max_depth", "many"), [(1, 510), (2, 5_310), (3, 21_630), (4, 6_398), (5, 14_686)])
def test_in_no_small_world_does_a_verdict_differ_from_the_oracles(max_depth: int, many: int) -> None:
    worlds = SmallWorlds(max_depth).explore()
    assert worlds.complaints == []
    assert sum(worlds.verdicts.values()) == many  # so that nobody makes them fewer without noticing
    sealed = {Rule.NO_RETURN} if max_depth > 1 else set()
    assert set(worlds.verdicts) == {"admitted", Rule.DEPTH, Rule.CYCLE, Rule.HAND_BACK, *sealed}


RIGHT = dict(rules.RULES)


def somewhere_wrong() -> bool:
    """Return True if the oracle finds a wrong verdict. Three hops show every mistake planted here."""
    return bool(SmallWorlds(3).explore(stop_at_first=True).complaints)


def one_too_deep(case: Case) -> Refusal | None:
    return None if case.segment.depth == case.policy.max_depth else RIGHT[Rule.DEPTH](case)


def one_too_shallow(case: Case) -> Refusal | None:
    if case.segment.depth + 1 == case.policy.max_depth:
        return Refusal(rule=Rule.DEPTH, detail="too soon")
    return None


def never(case: Case) -> Refusal | None:
    return None


def edges_only(case: Case) -> Refusal | None:
    """A cycle rule that does not look at the path."""
    if not isinstance(case.move, Transfer):
        return None
    return rules._repeated_edge(case, Rule.CYCLE, case.move.to_agent)


def path_only(case: Case) -> Refusal | None:
    """A cycle rule that does not look at the edges."""
    if isinstance(case.move, Transfer) and case.segment.index(case.move.to_agent) is not None:
        return Refusal(rule=Rule.CYCLE, detail="on the path")
    return None


def any_way_back(case: Case) -> Refusal | None:
    if isinstance(case.move, HandBack) and case.segment.resumed() is None:
        return Refusal(rule=Rule.HAND_BACK, detail="nowhere")
    return None


def seals_the_sealed_one(case: Case) -> Refusal | None:
    at = case.segment.index(case.target) if case.target is not None else None
    if at is None or case.segment.seal == 0 or at > case.segment.seal:
        return None
    return Refusal(rule=Rule.NO_RETURN, detail="too much is sealed")


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        pytest.param(Rule.DEPTH, never, id="no-depth"),
        pytest.param(Rule.DEPTH, one_too_deep, id="one-hop-too-many"),
        pytest.param(Rule.DEPTH, one_too_shallow, id="one-hop-too-few"),
        pytest.param(Rule.CYCLE, never, id="no-cycles"),
        pytest.param(Rule.CYCLE, edges_only, id="the-path-ignored"),
        pytest.param(Rule.CYCLE, path_only, id="the-edges-ignored"),
        pytest.param(Rule.HAND_BACK, any_way_back, id="any-hand-back"),
        pytest.param(Rule.NO_RETURN, never, id="seals-ignored"),
        pytest.param(Rule.NO_RETURN, seals_the_sealed_one, id="a-frame-too-much-sealed"),
    ],
)
def test_the_oracle_complains_of_a_wrong_rule(
    rule: Rule, wrong: Callable[[Case], Refusal | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rules.RULES, rule, wrong)
    assert somewhere_wrong()


def always_new(case: Case) -> bool:
    return True


def never_new(case: Case) -> bool:
    return False


def to_the_bottom(segment: Segment) -> int | None:
    return None if len(segment.path) == 1 else 0


def past_return_to(segment: Segment) -> int | None:
    return None if len(segment.path) == 1 else len(segment.path) - 2


def first_seal(segment: Segment) -> int:
    return min((index for index, frame in enumerate(segment.path) if frame.sealed), default=0)


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [
        pytest.param(rules, "_adds_new_fact", always_new, id="everything-is-new"),
        pytest.param(rules, "_adds_new_fact", never_new, id="nothing-is-new"),
        pytest.param(Segment, "resumed", to_the_bottom, id="a-hand-back-to-the-first-holder"),
        pytest.param(Segment, "resumed", past_return_to, id="a-hand-back-past-return_to"),
        pytest.param(Segment, "seal", property(first_seal), id="only-the-lowest-seal-counts"),
    ],
)
def test_the_oracle_complains_of_a_wrong_reading(
    where: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    assert somewhere_wrong()


def test_the_oracle_complains_of_a_handoff_that_loses_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "merge", lambda *_: NOTHING)
    assert somewhere_wrong()
