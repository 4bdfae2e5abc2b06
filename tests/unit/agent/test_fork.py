"""A fork's turns: what was recorded answers equal calls, and no effect happens unless the fork says so."""

from typing import Any, Literal

import msgspec
import pytest

from mesh.agent import Agent, ToolError, ToolRefused, Turn, agent, tool
from mesh.errors import Impossible, NotFound, UsageWrong
from mesh.ops.fork import fork_of
from mesh.testing import FleetHarness, InMemoryGuard, fleet_of
from protocol.wire import events
from protocol.wire.commands import Submit, Usage
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName
from protocol.wire.records import DONE, decode_record

FLEET = msgspec.structs.replace(
    fleet_of("front", "billing", human=True), operators=(AgentName("op"),), clients=(AgentName("app"),)
)
Effects = Literal["recorded", "refuse", "run"]


class Shop:
    """Two agents, and what their tools did."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.fails = 0
        """How often the next looks fail."""
        self.breaks = 0
        """How often the next refunds break."""

        @tool
        async def find(order: str) -> int:
            """Find an order."""
            self.did.append(f"find {order}")
            if self.fails:
                self.fails -= 1
                raise ToolError("not now")
            return 4200

        @tool(effect="idempotent")
        async def refund(cents: int, idempotency_key: str = "") -> str:
            """Give money back."""
            self.did.append(f"refund {cents}")
            if self.breaks:
                self.breaks -= 1
                raise RuntimeError("nobody knows how far it came")
            return f"receipt {len(self.did)}"

        @tool(effect="once")
        async def tell(turn: Turn | None = None) -> str:
            """Tell the customer."""
            assert turn is not None
            self.did.append(f"tell {turn.facts['customer']}")
            return "told"

        @agent(name="front", version="1")
        async def front(turn: Turn) -> Any:
            cents = await turn.call(find, order=turn.facts["order"])
            at = await turn.now()
            return turn.transfer("billing", summary="Give it back", facts={"cents": cents, "at": at})

        @agent(name="billing", version="1")
        async def billing(turn: Turn) -> Any:
            said = []
            for _ in range(2):
                try:
                    said.append(await turn.call(refund, cents=turn.facts["cents"]))
                except ToolRefused as no:
                    said.append(no.reason)
            try:
                said.append(await turn.call(tell))
            except ToolRefused as no:
                said.append(no.reason)
            return turn.complete({"summary": turn.handoff.summary, "said": said, "at": turn.facts["at"]})

        self.agents: dict[str, Agent] = {"front": front, "billing": billing}

    async def old(self, *facts: Fact) -> FleetHarness:
        """Return a request that they played."""
        guard = InMemoryGuard(FLEET, number=1)
        found = FleetHarness(guard, self.agents, keep_going=True)
        known = (Fact(key="order", value="O-1"), Fact(key="customer", value="c-7"))
        await found.go("Refund it", facts=(*known, *facts))
        assert found.status == "completed"
        return found

    async def fork(self, old: FleetHarness, n: int, number: int = 2, **how: Any) -> FleetHarness:
        """Return a fork of it, played by the same agents."""
        self.did.clear()
        guard = InMemoryGuard(FLEET, client="op", number=number)
        found = FleetHarness(guard, self.agents, keep_going=True)
        found.journals = old.journals
        guard.submit_whole(fork_of(old.guard.events, old.guard.bodies, n, **how))
        return await found.go_on()


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.mark.parametrize("n", [0, 1])
async def test_equal_calls_are_answered_by_their_records_in_order(shop: Shop, n: int) -> None:
    old = await shop.old()
    new = await shop.fork(old, n)
    assert new.answer == old.answer  # with both receipts, the time, and what the work was handed over for
    assert shop.did == []
    assert new.path == old.path[n:]


async def test_an_effect_with_other_arguments_is_refused_by_name(shop: Shop) -> None:
    old = await shop.old()
    new = await shop.fork(old, 1, facts=[Fact(key="cents", value=100)])
    assert new.answer["said"][:2] == ["fork.not_recorded", "fork.not_recorded"]
    assert shop.did == []
    refused = [
        record
        for (request, _, _), body in new.journals["billing"].steps.items()
        if request == new.guard.request and (record := decode_record(body)).error is not None
    ]
    assert {old.guard.request in known.error.message for known in refused if known.error} == {True}


async def test_so_is_an_effect_that_read_other_facts(shop: Shop) -> None:
    old = await shop.old()
    same = await shop.fork(old, 1, number=2, facts=[Fact(key="unread", value=1)])
    other = await shop.fork(old, 1, number=3, facts=[Fact(key="customer", value="c-8")])
    assert (same.answer["said"][2], other.answer["said"][2]) == ("told", "fork.not_recorded")
    assert shop.did == []


async def test_a_read_without_a_record_is_made(shop: Shop) -> None:
    old = await shop.old()
    await shop.fork(old, 0, facts=[Fact(key="order", value="O-2")])
    assert shop.did == ["find O-2"]


@pytest.mark.parametrize(
    ("effects", "did"),
    [
        ("refuse", ["find O-1"]),
        ("run", ["find O-1", "refund 4200", "refund 4200", "tell c-7"]),
    ],
)
async def test_without_the_record_everything_is_anew_and_effects_are_as_it_is_said(
    shop: Shop, effects: Effects, did: list[str]
) -> None:
    old = await shop.old()
    new = await shop.fork(old, 0, effects=effects)
    assert shop.did == did
    assert ("fork.effects_refused" in new.answer["said"]) is (effects == "refuse")


async def test_a_round_that_runs_again_finds_its_own_steps_and_the_record_goes_on_behind_them(
    shop: Shop,
) -> None:
    old = await shop.old()
    new = await shop.fork(old, 1)
    held = new.guard.ledger.turns[new.turns[0].execution.work.turn]
    again = await new.run_round(msgspec.structs.replace(held, given=new.turns[0].execution.work))
    assert again.move.answer == new.answer  # type: ignore[union-attr]
    assert shop.did == []


async def test_a_retry_gets_the_record_of_the_retry(shop: Shop) -> None:
    shop.fails = 1
    old = await shop.old()
    assert sum(isinstance(event, events.TurnFailed) for event in old.guard.events) == 1
    new = await shop.fork(old, 0)
    assert shop.did == []
    assert sum(isinstance(event, events.TurnFailed) for event in new.guard.events) == 1
    assert new.answer == old.answer


async def test_an_effect_that_broke_and_was_done_later_gets_what_came_of_it(shop: Shop) -> None:
    shop.breaks = 1
    old = await shop.old()
    assert shop.did.count("refund 4200") == 3
    new = await shop.fork(old, 1)
    assert new.answer == old.answer
    assert shop.did == []


async def test_an_effect_of_which_nothing_is_known_is_refused(shop: Shop) -> None:
    old = await shop.old()
    steps = old.journals["billing"].steps
    for place in [place for place in steps if place[2].endswith(DONE)]:
        del steps[place]
    new = await shop.fork(old, 1)
    assert new.answer["said"] == ["fork.not_recorded"] * 3
    assert shop.did == []


async def test_a_fork_of_a_fork_has_its_record(shop: Shop) -> None:
    old = await shop.old()
    first = await shop.fork(old, 1)
    second = await shop.fork(first, 0, number=3)
    assert second.answer == old.answer
    assert shop.did == []


async def test_each_turn_is_told_its_own_journals_alone(shop: Shop) -> None:
    old = await shop.old()
    new = await shop.fork(old, 0)
    told = {turn.agent: turn.execution.work.forked_from for turn in new.turns}
    assert {agent: tuple(fork.journals) for agent, fork in told.items() if fork} == {
        "front": ("front",),
        "billing": ("billing",),
    }


async def test_a_model_that_is_asked_the_same_is_answered_by_the_record_and_costs_nothing() -> None:
    asked: list[str] = []

    async def reply() -> str:
        asked.append("asked")
        return "yes"

    @agent(name="front", version="1")
    async def front(turn: Turn) -> Any:
        said, paid = await turn.model("m", "Is it?", reply, str, cost=lambda _: Usage(tokens=5))
        return turn.complete([said, paid])

    old = await FleetHarness(InMemoryGuard(FLEET), {"front": front}).go("hello")
    guard = InMemoryGuard(FLEET, client="op", number=2)
    new = FleetHarness(guard, {"front": front})
    new.journals = old.journals
    guard.submit_whole(fork_of(old.guard.events, old.guard.bodies, 0))
    await new.go_on()
    assert (old.answer, new.answer, asked) == (["yes", True], ["yes", False], ["asked"])
    spent = [found.guard.ledger.spent.tokens for found in (old, new)]
    assert spent == [5, 0]


# --- what can be forked --------------------------------------------------------------------------------


async def test_facts_text_agent_and_policy_can_be_others(shop: Shop) -> None:
    old = await shop.old()

    def forked(**how: Any) -> Submit:
        return fork_of(old.guard.events, old.guard.bodies, 1, **how)

    fork = forked(facts=[Fact(key="text", value="Anew")], drop=["customer"], to="front", policy="strict")
    assert (fork.text, fork.to, fork.policy) == ("Anew", "front", "strict")
    assert {fact.key for fact in fork.facts} == {"order", "cents", "at"}
    with pytest.raises(UsageWrong, match="cents, customer"):
        forked(drop=["nothing"])
    with pytest.raises(UsageWrong, match="--set text"):
        forked(drop=["text"])


async def test_a_changed_fact_keeps_its_labels(shop: Shop) -> None:
    old = await shop.old(Fact(key="card", value="1", labels=("pii",)))
    fork = fork_of(old.guard.events, old.guard.bodies, 1, facts=[Fact(key="card", value="2")])
    assert Fact(key="card", value="2", labels=("pii",)) in fork.facts


async def test_what_cannot_be_forked_says_what_to_do(shop: Shop) -> None:
    old = await shop.old()
    end = len(old.guard.events) - 1
    with pytest.raises(Impossible, match="an earlier one"):
        fork_of(old.guard.events, old.guard.bodies, end)
    with pytest.raises(NotFound, match=f"the last one is {end}"):
        fork_of(old.guard.events, old.guard.bodies, end + 1)
    spoilt = [old.guard.bodies[0].replace(b"Refund", b"Refuse"), *old.guard.bodies[1:]]
    with pytest.raises(Impossible, match="log verify"):
        fork_of(old.guard.events, spoilt, 1)


async def test_where_people_have_the_work_an_agent_has_to_be_named(shop: Shop) -> None:
    guard = InMemoryGuard(FLEET)

    @agent(name="front")
    async def asks(turn: Turn) -> Any:
        return turn.escalate("a person, please")

    old = await FleetHarness(guard, {"front": asks}).go("hello")
    with pytest.raises(Impossible, match="--to"):
        fork_of(old.guard.events, old.guard.bodies, 1)
    assert fork_of(old.guard.events, old.guard.bodies, 1, to="front").to == "front"
