"""Labels by key: the fleet file's word holds for every fact, whoever brings it."""

import msgspec
import pytest

from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard, fleet_of, turn
from protocol.wire import codec
from protocol.wire.commands import Move
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.events import HandoffAdmitted, MoveRefused
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName

NAME = Fact(key="customer_name", value="Ada")
LABELLED = Fact(key="customer_name", value="Ada", labels=("pii",))


def fleet() -> Fleet:
    made = fleet_of("front", "blind", human=True)
    cleared = AgentEntry(name=AgentName("front"), clearance=("pii", "vip"))
    return msgspec.structs.replace(
        made, agents={**made.agents, "front": cleared}, labels={"customer_name": ("pii",)}
    )


def opened_with(*facts: Fact, to: str | None = None) -> InMemoryGuard:
    opened = InMemoryGuard(fleet())
    opened.submit("Say hello", facts=facts, to=to)
    return opened


def carried(opened: InMemoryGuard) -> list[Fact]:
    return [fact for key, fact in opened.ledger.carried().items() if key == NAME.key]


def assert_judged_the_same(opened: InMemoryGuard) -> None:
    again = rejudge([codec.encode(event) for event in opened.events])
    assert again.same, again


@pytest.mark.parametrize("to", ["front", "blind"])
def test_what_a_client_labels_besides_stays(to: str) -> None:
    opened = opened_with(Fact(key="customer_name", value="Ada", labels=("vip",)), to=to)
    assert carried(opened) == [Fact(key="customer_name", value="Ada", labels=("pii", "vip"))]
    assert_judged_the_same(opened)


@pytest.mark.parametrize(
    "move",
    [
        turn(agent="front", peers=["blind"]).transfer("blind", summary="greet them", facts=[NAME]),
        turn(agent="front").escalate("who is this?", facts=[NAME]),
    ],
    ids=["transfer", "escalate"],
)
def test_an_agent_that_says_no_label_brings_it_all_the_same(move: Move) -> None:
    opened = opened_with()
    opened.move(move)
    assert carried(opened) == [LABELLED]
    assert_judged_the_same(opened)


def test_a_hand_back_and_a_refused_move_are_labelled_too() -> None:
    opened = opened_with()
    opened.move(turn(agent="front", peers=["blind"]).transfer("blind", summary="greet them"))
    back = turn(agent="blind", path=["front", "blind"]).hand_back("it is Ada", facts=[NAME])
    assert isinstance(opened.move(back), HandoffAdmitted)
    assert carried(opened) == [LABELLED]
    stranger = turn(agent="front", peers=["nobody"]).transfer("nobody", summary="?", facts=[NAME])
    refused = opened.move(stranger)
    assert isinstance(refused, MoveRefused)
    assert refused.move.facts == (LABELLED,)  # type: ignore[union-attr]
    assert_judged_the_same(opened)


def test_a_person_who_resolves_brings_it_labelled() -> None:
    opened = opened_with()
    opened.move(turn(agent="front").escalate("who is this?"))
    opened.resolve(to="blind", summary="it is Ada", facts=(NAME,))
    assert carried(opened) == [LABELLED]
    assert_judged_the_same(opened)
