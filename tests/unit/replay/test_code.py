"""Agents' code over what a log holds: the same code comes to the same, and each change is named."""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.agent import Agent, Move, Turn, agent, tool
from mesh.agent._steps import MAX_STEPS
from mesh.errors import Malformed
from mesh.fleet.file import parse_fleet
from mesh.replay.code import Recording, Replayed, Replayer
from mesh.replay.differences import KINDS
from mesh.replay.export import StoredStep, load
from mesh.testing import FleetHarness, InMemoryGuard, StrictModel, driven_by, fleet_of
from protocol.wire import codec
from protocol.wire.events import HandoffAdmitted
from tests.servers import ROOT
from tests.unit.agents.conftest import records
from tests.unit.agents.crews import EVERY_CREW, Crew, walk
from tests.unit.protocol.anything import STORIES
from tests.unit.replay import shop, stories

__all__ = ["records"]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetHarness]:
    """The shop's request, as its own code played it."""
    agents = shop.agents_in(shop.SOURCE, tmp_path_factory.mktemp("shop"))
    with driven_by(StrictModel(*shop.REPLIES)):
        yield asyncio.run(shop.played(agents))


async def over(walk: FleetHarness, agents: Mapping[str, Agent], **options: Any) -> list[Replayed]:
    return await Replayer(agents, walk.recording, **options).replay(walk.guard.bodies)


# --- the same code ------------------------------------------------------------------------------------


def test_whatever_fleets_play_the_same_code_comes_to_the_same() -> None:
    wrong, results, _ = asyncio.run(stories.different(range(STORIES)))
    assert wrong == []
    assert results["same"] > 20 * results.get("not replayable", 0)


@pytest.mark.parametrize("crew", EVERY_CREW, ids=str)
async def test_so_does_the_code_of_the_reference_fleets(crew: Crew, records: Path) -> None:
    results = set()
    for sample in crew.of_kind("ruled")[:6]:
        found = await walk(crew, sample.text, sample.facts)
        results |= {(each.result, each.difference) for each in await over(found, crew.agents)}
    assert results == {("same", None)}


async def test_nothing_is_run_again(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool(effect="idempotent")
    async def pay(idempotency_key: str = "") -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    @agent(version="1")
    async def front(turn: Turn) -> Any:
        return turn.complete(await turn.call(pay))

    found = await FleetHarness(InMemoryGuard(fleet_of("front")), {"front": front}).go("Pay")
    assert [each.result for each in await over(found, {"front": front})] == ["same"]
    assert ran == ["paid"]


async def test_a_round_is_told_nothing_of_later_rounds(played: FleetHarness, tmp_path: Path) -> None:
    """The first round of billing asked; the second has a step that the first one's code would take."""
    eager = shop.SOURCE.replace("turn.reply is None and", "False and").replace(
        "and not turn.reply", "and False"
    )
    found = await over(played, shop.agents_in(eager, tmp_path))
    assert [(each.round, each.difference and each.difference.kind) for each in found if each.difference] == [
        (0, "stops")
    ]


async def test_agents_whose_code_is_not_given_are_passed_over(played: FleetHarness, tmp_path: Path) -> None:
    front = {"front": shop.agents_in(shop.SOURCE, tmp_path)["front"]}
    assert [(each.agent, each.result) for each in await over(played, front)] == [("front", "same")]


# --- other code ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shop.MUTANTS)
async def test_each_change_of_the_code_is_named_by_its_kind(
    name: str, played: FleetHarness, tmp_path: Path
) -> None:
    mutant = shop.MUTANTS[name]
    first = next(each for each in await over(played, mutated(mutant, tmp_path)) if each.result != "same")
    assert first.difference is not None
    assert (first.agent, first.difference.kind) == (mutant.agent, mutant.kind)
    assert mutant.says in first.difference.says
    assert "\n" not in first.difference.says


def mutated(mutant: shop.Mutant, folder: Path) -> dict[str, Agent]:
    return shop.agents_in(shop.mutated(mutant), folder)


def test_the_changes_are_of_every_kind() -> None:
    assert {mutant.kind for mutant in shop.MUTANTS.values()} == set(KINDS)
    assert len(shop.MUTANTS) >= 40


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("another target", "the guard would admit it"),
        ("a target that is none", "the guard would refuse it: known_agent"),
    ],
)
async def test_another_move_comes_with_the_guards_verdict(
    name: str, verdict: str, played: FleetHarness, tmp_path: Path
) -> None:
    (first, *_) = (each.difference for each in await over(played, mutated(shop.MUTANTS[name], tmp_path)))
    assert first is not None
    assert first.verdict == verdict


async def test_another_move_meets_the_form_of_its_edge() -> None:
    fleet = parse_fleet("""
name = "desk"
entry = "front"
[agents.front]
carries.billing.properties.cents.type = "integer"
[agents.billing]
""").fleet

    def fronting(cents: object) -> Agent:
        @agent(name="front", version="1")
        async def front(turn: Turn) -> Any:
            return turn.transfer("billing", summary="pay back", facts={"cents": cents})

        return front

    @agent(name="billing", version="1")
    async def billing(turn: Turn) -> Any:
        return turn.complete("done")

    found = await FleetHarness(InMemoryGuard(fleet), {"front": fronting(25), "billing": billing}).go("Pay")
    assert found.answer == "done"
    (same,) = await over(found, {"front": fronting(25)})
    assert same.result == "same"
    (other,) = await over(found, {"front": fronting("25")})
    assert other.difference is not None
    assert other.difference.verdict == "the guard would refuse it: form"


async def test_another_prompt_is_shown_line_by_line(played: FleetHarness, tmp_path: Path) -> None:
    found = await over(played, mutated(shop.MUTANTS["other instructions"], tmp_path))
    (difference,) = (each.difference for each in found if each.difference)
    assert difference.diff.splitlines()[-2:] == [
        "-You write to customers. Be kind.",
        "+You write to customers. Be brief.",
    ]


@pytest.mark.parametrize(
    ("name", "kind"), [("the wall clock", "clock"), ("a file", "files"), ("chance", "random")]
)
async def test_an_agent_may_be_allowed_to_read_outside(
    name: str, kind: str, played: FleetHarness, tmp_path: Path
) -> None:
    """Then its other move is what differs."""
    before = sys.getprofile()
    found = await over(played, mutated(shop.MUTANTS[name], tmp_path), allowed={"front": [kind]})
    assert [each.difference and each.difference.kind for each in found[:1]] == ["tool"]  # no time is taken
    assert sys.getprofile() is before


async def test_the_same_move_with_another_report_is_told_by_the_report() -> None:
    def front_at(nano_dollars: int) -> Agent:
        @agent(name="front", version="1")
        async def front(turn: Turn) -> Move:
            turn.spend(nano_dollars=nano_dollars)
            return turn.complete("done")

        return front

    walk = FleetHarness(InMemoryGuard(fleet_of("front")), {"front": front_at(7)})
    await walk.go("Help")
    (found,) = await over(walk, {"front": front_at(0)})
    assert found.difference is not None
    assert found.difference.kind == "move"
    assert found.difference.says.startswith("complete: report ")
    assert "prev" not in found.difference.says


async def test_code_that_moves_within_its_file_is_the_same(tmp_path: Path) -> None:
    """A failure names its line, which every line above it moves."""
    source = shop.SOURCE.replace("    kind, _ =", '    raise KeyError("x")\n    kind, _ =')
    walk = FleetHarness(
        InMemoryGuard(fleet_of("front", human=True)), shop.agents_in(source, tmp_path), keep_going=True
    )
    found = await walk.go("It broke", facts={"order": "O-1"})
    moved = shop.agents_in(f"# a line more\n\n{source}", tmp_path)
    assert {each.result for each in await over(found, {"front": moved["front"]})} == {"same"}


# --- what is not replayable ---------------------------------------------------------------------------


def without(walk: FleetHarness, name: str, body: bytes | None = None) -> Recording:
    """Return a record in which a step is missing, or is another."""
    kept = walk.recording
    for (_, by), journals in kept._journals.items():
        for steps in journals.values():
            if by == "front" and name in steps:
                del steps[name]
                if body is not None:
                    steps[name] = body
    return kept


RECORD = msgspec.json.encode({"kind": "call", "name": "find", "nonce": "n", "at": 1, "arguments": {}})
ODD = {
    "a hole": ("0-1", None, "its journal is not whole: 4 of 5 steps"),
    "the end is lost": ("0-4", None, "its journal is not whole: 4 of 5 steps"),
    "poisoned": ("0-0", b"\x00not a step", "step 0-0 cannot be read"),
    "of another type": ("0-0", b'{"kind":7,"nonce":"n","at":1}', "step 0-0 cannot be read"),
    "too large": ("0-0", RECORD.replace(b"find", b"x" * (600 << 10)), "step 0-0 is too large"),
    "newer": ("0-0", RECORD.replace(b"{", b'{"v":2,', 1), "step 0-0 is of a newer version"),
    "older": ("0-0", RECORD.replace(b',"arguments":{}', b""), "older form"),
}


@pytest.mark.parametrize("how", ODD)
async def test_a_journal_that_cannot_be_relied_on_is_not_replayable(
    how: str, played: FleetHarness, tmp_path: Path
) -> None:
    name, body, why = ODD[how]
    agents = {"front": shop.agents_in(shop.SOURCE, tmp_path)["front"]}
    kept = without(played, name, body)
    (found,) = await Replayer(agents, kept).replay(played.guard.bodies)
    assert (found.result, found.why) == ("not replayable", why)


async def test_steps_under_other_names_are_no_steps(played: FleetHarness, tmp_path: Path) -> None:
    """Marks of attempts lie beside them."""
    agents = {"front": shop.agents_in(shop.SOURCE, tmp_path)["front"]}
    kept = played.recording
    ((request, _), journals) = next(each for each in kept._journals.items() if each[0][1] == "front")
    (turn,) = journals
    names = ("0-a0", "0-b0", "x", "-1-0")
    kept.take(StoredStep(f"mesh.step.front.{request}.{turn}.{name}", b"{}") for name in names)
    assert [each.result for each in await Replayer(agents, kept).replay(played.guard.bodies)] == ["same"]


@pytest.mark.parametrize("log", ["answered-story", "supervised", "swarm"])
async def test_a_log_of_before_is_of_an_older_form_and_never_different(log: str) -> None:
    @agent(name="any")
    async def other(turn: Turn) -> Any:
        return turn.complete("something else")

    (bodies,) = load(ROOT / "tests" / "golden" / "logs" / f"{log}.jsonl").values()
    names = {event.work.handoff.to_agent for body in bodies if (event := codec.decode_event(body)).work}
    found = await Replayer(dict.fromkeys(names, other), Recording(fleet=fleet_of(*names))).replay(bodies)
    assert found
    assert {each.result for each in found} == {"not replayable"}
    assert "older form" in {each.why for each in found}


async def test_a_round_whose_fleet_is_not_kept_is_not_replayable(
    played: FleetHarness, tmp_path: Path
) -> None:
    kept = played.recording
    kept.fleet = None
    (found,) = await Replayer({"front": shop.agents_in(shop.SOURCE, tmp_path)["front"]}, kept).replay(
        played.guard.bodies
    )
    assert found.why == "revision 0 of the fleet is not kept"


async def test_a_log_that_cannot_be_read_is_told(played: FleetHarness, tmp_path: Path) -> None:
    agents = shop.agents_in(shop.SOURCE, tmp_path)
    bodies = played.guard.bodies
    for broken in ([bodies[0], b"{}"], [bodies[0], *bodies[2:]]):
        *_, last = await Replayer(agents, played.recording).replay(broken)
        assert last.result == "not replayable"
        assert last.why.startswith("its log cannot be read")
        assert last.request == played.guard.request


async def test_a_round_that_is_still_open_is_not_replayable(tmp_path: Path) -> None:
    guard = InMemoryGuard(fleet_of("front"))
    guard.submit("Help", facts={"order": "1"})
    agents = shop.agents_in(shop.SOURCE, tmp_path)
    (found,) = await Replayer(agents, Recording(fleet=guard.fleet)).replay(guard.bodies)
    assert (found.n, found.why) == (None, "it is not decided yet")


async def test_what_a_call_failed_with_outside_is_not_judged(tmp_path: Path) -> None:
    async def away() -> str:
        raise ConnectionError("the model is away")

    @agent(version="1")
    async def front(turn: Turn) -> Any:
        return turn.complete(await turn.model("small", "hello", away, str))

    walk = FleetHarness(InMemoryGuard(fleet_of("front", human=True)), {"front": front}, keep_going=True)
    found = await over(await walk.go("Help"), {"front": front})
    assert {each.why for each in found} == {"what model small failed with is not recorded"}


# --- code that does as it likes -----------------------------------------------------------------------


async def test_no_code_takes_more_steps_than_a_journal_has(tmp_path: Path) -> None:
    @agent(version="1")
    async def front(turn: Turn) -> Any:
        for n in range(MAX_STEPS + 5):
            await turn.remark(str(n))
        return turn.complete("done")

    walk = FleetHarness(InMemoryGuard(fleet_of("front", human=True)), {"front": front}, keep_going=True)
    found = await over(await walk.go("Help"), {"front": front})
    assert {each.result for each in found} == {"same"}


async def test_calls_side_by_side_have_no_order(tmp_path: Path) -> None:
    """Which of them comes first is the world's affair, today as then."""

    @tool
    async def look(what: str, pauses: int) -> str:
        """Look."""
        for _ in range(pauses):
            await asyncio.sleep(0)
        return what

    async def branch(turn: Turn, name: str, pauses: int) -> str:
        return await turn.call(look, name, pauses) + await turn.call(look, f"{name}2", pauses)

    @agent(version="1")
    async def front(turn: Turn) -> Any:
        both = await asyncio.gather(branch(turn, "slow", 9), branch(turn, "fast", 0))
        return turn.complete("".join(both))

    found = await FleetHarness(InMemoryGuard(fleet_of("front")), {"front": front}).go("Help")
    assert [each.result for each in await over(found, {"front": front})] == ["same"]


async def test_code_that_swallows_what_stops_it_is_stopped(played: FleetHarness, tmp_path: Path) -> None:
    swallows = shop.SOURCE.replace(
        shop.MAIL,
        "    try:\n        await turn.call(mail, to='boss')\n    except BaseException:\n        pass\n",
    )
    found = await over(played, shop.agents_in(swallows, tmp_path))
    assert [each.difference.kind for each in found if each.difference] == ["arguments"]


def test_the_log_of_the_shop_has_what_the_tests_assume(played: FleetHarness) -> None:
    admitted = [event for event in played.guard.events if isinstance(event, HandoffAdmitted)]
    assert [event.to for event in admitted] == ["billing", "writer"]
    with pytest.raises(Malformed):
        codec.decode_event(b"{}")
