"""Recorded requests as tests: they pass on the code that ran, and fail for each change of it."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.agent import Agent, Turn, agent, tool
from mesh.errors import Impossible, NotFound
from mesh.replay.cases import CaseFile, as_pytest, cases_of
from mesh.replay.code import Recording
from mesh.replay.fakes import Fakes
from mesh.testing import FleetHarness, InMemoryGuard, StrictModel, assert_as_recorded, driven_by, fleet_of
from protocol.wire import codec
from protocol.wire.handoff import Fact
from protocol.wire.moves import Complete, Escalate, Fail, Transfer
from protocol.wire.records import RAISED
from tests.unit.agents.conftest import records, scratch
from tests.unit.agents.crews import EVERY_CREW, SUPPORT, Crew, walk
from tests.unit.replay import shop

__all__ = ["records", "scratch"]


def exported(found: FleetHarness, agents: Mapping[str, Agent], **how: Any) -> CaseFile:
    return cases_of(found.guard.bodies, found.recording, agents, **how)


def written_tests(found: CaseFile, agents: Mapping[str, Agent]) -> list[Callable[[], None]]:
    """Return the functions of the file that is written, over these agents."""
    code = {name: f"tests.unit.testing.test_recorded:{name}" for name in agents}
    lines = as_pytest(found, code).splitlines()
    source = "\n".join(line for line in lines if not line.startswith("from tests.unit.testing"))
    names: dict[str, Any] = {f"{name.replace('-', '_')}_agent": each for name, each in agents.items()}
    exec(compile(source, "exported.py", "exec"), names)  # it is what is tested
    return [each for name, each in names.items() if name.startswith("test_")]


def run(found: CaseFile, agents: Mapping[str, Agent]) -> None:
    tests = written_tests(found, agents)
    assert len(tests) == len(found.cases) > 0
    for test in tests:
        test()


# --- on the code that ran ---------------------------------------------------------------------------


@pytest.mark.parametrize("crew", EVERY_CREW, ids=str)
def test_the_reference_fleets_pass_what_they_played(crew: Crew, records: Path, scratch: Path) -> None:
    for sample in crew.of_kind("ruled")[:6]:
        found = asyncio.run(walk(crew, sample.text, sample.facts))
        run(exported(found, crew.agents), crew.agents)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> FleetHarness:
    agents = shop.agents_in(shop.SOURCE, tmp_path_factory.mktemp("shop"))
    with driven_by(StrictModel(*shop.REPLIES)):
        return asyncio.run(shop.played(agents))


def test_calls_side_by_side_asks_and_models_pass(played: FleetHarness, tmp_path: Path) -> None:
    agents = shop.agents_in(shop.SOURCE, tmp_path)
    found = exported(played, agents)
    assert max(len(case.rounds) for case in found.cases) == 2
    run(found, agents)


UNSEEN = ("prompt", "reads outside")
"""Kinds of changes that a recorded reply does not see: another question, and the clock."""
SEEN = [
    name
    for name, each in shop.MUTANTS.items()
    if each.kind not in UNSEEN and name != "the time before the model"  # times have no order among calls
]


@pytest.mark.parametrize("name", SEEN)
def test_a_change_of_the_shop_fails(name: str, played: FleetHarness, tmp_path: Path) -> None:
    found = exported(played, shop.agents_in(shop.SOURCE, tmp_path))
    (tmp_path / "mutant").mkdir()
    mutant = shop.agents_in(shop.mutated(shop.MUTANTS[name]), tmp_path / "mutant")
    with pytest.raises(BaseException):  # noqa: B017, PT011  # a move, a call, or whatever the code raises
        run(found, mutant)


# --- mutants of a reference fleet -------------------------------------------------------------------

Handler = Callable[[Turn], Any]


def moved(change: Callable[[Any], Any]) -> Callable[[Agent], Handler]:
    """Return what makes a handler whose move is another one."""

    def made(was: Agent) -> Handler:
        async def handler(turn: Turn) -> Any:
            return change(await was.handler(turn))

        return handler

    return made


def called(change: Callable[[Any, Any], Any]) -> Callable[[Agent], Handler]:
    """Return what makes a handler whose calls go through `change(call, tool, arguments, …)`."""

    def made(was: Agent) -> Handler:
        async def handler(turn: Turn) -> Any:
            execution: Any = turn.execution
            call = execution.call
            execution.call = lambda *given, **known: change(call, given)(*given, **known)
            return await was.handler(turn)

        return handler

    return made


def _transfers(**fields: Any) -> Callable[[Any], Any]:
    return lambda move: msgspec.structs.replace(move, **fields) if isinstance(move, Transfer) else move


def _other_arguments(call: Any, given: Any) -> Any:
    async def changed(tool: Any, arguments: Any, **known: Any) -> Any:
        spoilt = {name: f"{value}0" for name, value in arguments.items()}
        return await call(tool, spoilt if "charge_id" in arguments else arguments, **known)

    return changed


def _left_out(call: Any, given: Any) -> Any:
    async def changed(tool: Any, arguments: Any, **known: Any) -> Any:
        return {"refunded": True} if tool.effect else await call(tool, arguments, **known)

    return changed


def _twice(call: Any, given: Any) -> Any:
    async def changed(tool: Any, arguments: Any, **known: Any) -> Any:
        if tool.effect:
            await call(tool, arguments, **known)
        return await call(tool, arguments, **known)

    return changed


def _another_tool(call: Any, given: Any) -> Any:
    from agents.support.billing import list_charges

    async def changed(tool: Any, arguments: Any, **known: Any) -> Any:
        return await call(list_charges if tool.effect is None else tool, arguments, **known)

    return changed


def _early(was: Agent) -> Handler:
    """Refund before the charge is looked up."""
    from agents.support.billing import refund_charge

    async def handler(turn: Turn) -> Any:
        given = {"charge_id": "ch-9001", "reason": "at once"}
        await turn.execution.call(refund_charge, given, for_model=False)
        return await was.handler(turn)

    return handler


def _raises(was: Agent) -> Handler:
    async def handler(turn: Turn) -> Any:
        await was.handler(turn)
        raise RuntimeError("too late")

    return handler


def _raises_at_once(was: Agent) -> Handler:
    async def handler(turn: Turn) -> Any:
        raise LookupError("no such thing")

    return handler


MUTANTS: dict[str, tuple[str, Callable[[Agent], Handler]]] = {
    "another route": ("triage", moved(_transfers(to_agent="technical"))),
    "a missing hand-over": (
        "triage",
        moved(lambda move: Complete(answer="I did it") if isinstance(move, Transfer) else move),
    ),
    "a dropped fact": ("triage", moved(_transfers(facts=()))),
    "another intent": ("triage", moved(_transfers(intent="invoice"))),
    "another summary": ("triage", moved(_transfers(summary="see above"))),
    "a person instead": ("billing", moved(lambda move: Escalate(summary="please"))),
    "given up": ("billing", moved(lambda move: Fail(reason="no"))),
    "another answer": ("billing", moved(lambda move: Complete(answer="no"))),
    "another argument": ("billing", called(_other_arguments)),
    "an effect left out": ("billing", called(_left_out)),
    "an effect twice": ("billing", called(_twice)),
    "another tool": ("billing", called(_another_tool)),
    "another order": ("billing", _early),
    "an exception at the end": ("billing", _raises),
    "an exception at once": ("triage", _raises_at_once),
}


def mutant_of(name: str) -> Agent:
    whose, change = MUTANTS[name]
    was = SUPPORT.agents[whose]
    return Agent(whose, change(was), version=was.version, prompt_version=was.prompt_version)


@pytest.fixture(scope="module")
def refund(tmp_path_factory: pytest.TempPathFactory) -> CaseFile:
    """A request that triage gave to billing, which refunded a charge."""
    folder = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPPORT_DB", str(folder / "support.db"))
        for sample in SUPPORT.of_kind("ruled"):
            found = asyncio.run(walk(SUPPORT, sample.text, sample.facts))
            made = exported(found, SUPPORT.agents)
            calls = [call for case in made.cases for each in case.rounds for call in each["calls"]]
            if found.path == ["triage", "billing"] and any("effect" in call for call in calls):
                return made
    raise AssertionError("no sample is one")


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_of_a_reference_fleet_fails(name: str, refund: CaseFile, records: Path) -> None:
    run(refund, SUPPORT.agents)
    changed = mutant_of(name)
    with pytest.raises(Exception) as failed:  # noqa: PT011  # a move, a call, or whatever the code raises
        run(refund, {**SUPPORT.agents, changed.name: changed})
    assert isinstance(failed.value, AssertionError) or "exception" in name, failed.value


def test_the_mutants_are_a_dozen_and_more() -> None:
    assert len(MUTANTS) >= 12


def test_the_failure_says_what_is_called_instead_or_left_out(refund: CaseFile, records: Path) -> None:
    for name, said in (("an effect left out", "refund_charge"), ("another order", "instead of")):
        with pytest.raises(AssertionError, match=said):
            run(refund, {**SUPPORT.agents, "billing": mutant_of(name)})


# --- values under labels ----------------------------------------------------------------------------

SECRET = {
    "card": "4111-1111-9999",
    "cents": 98765,
    "born": "1970-05-06",
    "vip": True,
    "tags": ["Ada Lovelace"],
}


@tool
async def look_up(card: str) -> dict[str, Any]:
    """Find who has a card."""
    return {"owner": "Ada Lovelace", "limit": 98765, "card": card}


@agent(name="front")
async def front(turn: Turn) -> Any:
    found = await turn.call(look_up, card=turn.facts["card"])
    told = f"{found['owner']} wants {turn.facts['cents']} back, {turn.facts['born']}"
    return turn.transfer("desk", summary=told, facts={"owner": found["owner"]})


@agent(name="desk")
async def desk(turn: Turn) -> Any:
    return turn.complete(
        {"paid": turn.facts["cents"], "to": turn.facts["owner"], "cents": turn.facts["cents"]}
    )


PEOPLE = {"front": front, "desk": desk}


def labelled() -> FleetHarness:
    entries = fleet_of("front", "desk")
    cleared = {
        name: msgspec.structs.replace(each, clearance=("pii",)) for name, each in entries.agents.items()
    }
    guard = InMemoryGuard(msgspec.structs.replace(entries, agents=cleared))
    facts = tuple(Fact(key=key, value=value, labels=("pii",)) for key, value in SECRET.items())
    return asyncio.run(FleetHarness(guard, PEOPLE).go("pay back", facts=facts))


def test_values_under_labels_are_stand_ins_and_the_tests_pass_all_the_same() -> None:
    found = exported(labelled(), PEOPLE)
    text = as_pytest(found, {name: f"x:{name}" for name in PEOPLE})
    for value in ("4111", "98765", "1970-05-06", "Ada", "Lovelace"):
        assert value not in text
    assert found.fakes == 5
    run(found, PEOPLE)
    facts = {fact["key"]: fact for fact in found.cases[1].rounds[0]["work"]["handoff"]["facts"]}
    assert type(facts["cents"]["value"]) is int
    assert facts["vip"]["value"] is False
    assert len(facts["card"]["value"]) == len("4111-1111-9999")
    assert found == exported(labelled(), PEOPLE)


def test_labels_that_a_guard_gives_to_a_key_are_no_difference() -> None:
    fleet = fleet_of("front", "desk")
    cleared = {name: msgspec.structs.replace(each, clearance=("pii",)) for name, each in fleet.agents.items()}
    labels = {"owner": ("pii",), "card": ("pii",)}
    guard = InMemoryGuard(msgspec.structs.replace(fleet, agents=cleared, labels=labels))
    facts = tuple(Fact(key=key, value=value) for key, value in SECRET.items())
    found = asyncio.run(FleetHarness(guard, PEOPLE).go("pay back", facts=facts))
    made = exported(found, PEOPLE)
    assert made.fakes == 2
    assert "Lovelace" not in str([case.rounds[0]["comes_to"] for case in made.cases])
    run(made, PEOPLE)


def test_a_stand_in_is_never_the_value_and_the_same_wherever_it_stands() -> None:
    for value in (7, 0, 1.5, "x", "Straße 7", "ada@example.com", -12, "2026-02-28", "…", 10**12, True):
        fakes = Fakes("r")
        fakes.learn(value)
        told = fakes.replaced({"facts": [{"key": "k", "value": value, "labels": ["pii"]}], "round": 7})
        fake = told["facts"][0]["value"]
        assert fake != value
        assert type(fake) is type(value)
        assert told["round"] == 7
        if isinstance(value, str) and len(value) > 2:
            assert fakes.replaced({"summary": f"it is {value}."}) == {"summary": f"it is {fake}."}


# --- which turns, and what is refused ---------------------------------------------------------------


def test_a_pair_is_the_hand_over_alone(refund: CaseFile) -> None:
    found = exported(labelled(), PEOPLE, pair=("front", "desk"))
    assert [case.agent for case in found.cases] == ["front", "desk"]
    with pytest.raises(NotFound, match="front:desk"):
        exported(labelled(), PEOPLE, pair=("desk", "front"))


def test_an_agent_without_code_is_left_out_and_all_of_them_are_an_error() -> None:
    found = exported(labelled(), {"front": front})
    assert ([case.agent for case in found.cases], found.left_out) == (["front"], ["desk"])
    with pytest.raises(NotFound, match="desk, front"):
        exported(labelled(), {"nobody": front})


def test_a_trimmed_request_is_refused_by_name() -> None:
    found = labelled()
    with pytest.raises(Impossible, match=r"front's round .* trimmed"):
        cases_of(found.guard.bodies, Recording(fleet=found.guard.fleet), PEOPLE)


def test_a_request_of_an_older_form_is_refused_by_name() -> None:
    found = labelled()
    old = [json.loads(body) for body in found.guard.bodies]
    for event in old:
        event.get("report", {}).pop("version", None)
    bodies = [msgspec.json.encode(event) for event in old]
    assert codec.decode_event(bodies[0])
    with pytest.raises(Impossible, match="older form"):
        cases_of(bodies, found.recording, PEOPLE)
    with pytest.raises(Impossible, match="older form"):
        cases_of([msgspec.json.encode({**old[0], "v": 1})], found.recording, PEOPLE)


def test_what_a_tool_refused_or_raised_it_does_again() -> None:
    @tool
    async def breaks() -> str:
        """Break."""
        raise KeyError("gone")

    @agent(name="one")
    async def one(turn: Turn) -> Any:
        try:
            return turn.complete(await turn.call(breaks))
        except KeyError as error:
            return turn.complete(f"no: {error.args[0]}")

    found = asyncio.run(FleetHarness(InMemoryGuard(fleet_of("one")), {"one": one}).go("go"))
    made = exported(found, {"one": one})
    assert made.cases[0].rounds[0]["calls"][0]["error"]["code"] == RAISED
    run(made, {"one": one})


def test_a_time_is_the_recorded_one() -> None:
    @agent(name="one")
    async def one(turn: Turn) -> Any:
        return turn.complete([await turn.now(), await turn.random()])

    found = asyncio.run(FleetHarness(InMemoryGuard(fleet_of("one")), {"one": one}).go("go"))
    [case] = exported(found, {"one": one}).cases
    assert_as_recorded(one, found.guard.request, msgspec.to_builtins(found.guard.fleet), case.rounds)
