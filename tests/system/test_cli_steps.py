"""`mesh request show --steps`: what each turn did, as its journal has it, beneath what it came to."""

import json
from pathlib import Path

import msgspec

from mesh.agent import Turn, tool
from mesh.agent.definition import Agent
from mesh.agent.errors import ToolError
from mesh.cli.exits import Exit
from mesh.model.loop import drive
from mesh.testing import StrictModel
from protocol.wire import subjects
from protocol.wire.commands import Usage
from protocol.wire.ids import AgentName
from protocol.wire.moves import Move, Transfer
from protocol.wire.prices import Metered
from protocol.wire.records import Record, Refused
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S
from tests.system.office import Office
from tests.system.test_cli_cost import CALL, Halting, costing, priced


@tool
async def look() -> str:
    """Look."""
    return "secret value"


@tool
async def decline() -> str:
    """Say no."""
    raise ToolError("Not on a Sunday.")


@tool(effect="idempotent")
async def pay(idempotency_key: str = "") -> str:
    """Pay."""
    return "paid"


@tool(effect="once")
async def lose() -> str:
    """Break in the middle."""
    raise OSError("nobody knows")


TOOLS = (look, decline, pay, lose)


async def to_b(turn: Turn) -> Move:
    """Be refused once, then hand over."""
    if not turn.past:
        await drive(
            turn, StrictModel(costing("", "look", "decline"), costing("x")), instructions="A", tools=TOOLS
        )
        return turn.transfer("nobody", summary="it cannot be")
    await turn.call(pay)
    return turn.transfer("b", summary="please")


async def shown(office: Office, request: str, *options: str) -> str:
    said = await office.mesh("request", "show", request, *options, who="audit")
    assert said.status == Exit.DONE, said
    return said.out


async def test_steps_are_told_once_beneath_what_their_rounds_came_to(office: Office, stage: Stage) -> None:
    await priced(stage)
    await stage.runtime(Agent("a", to_b, version="7", tools=TOOLS))
    model = Halting(costing("", "look"))

    async def work(turn: Turn) -> Move:
        return await drive(turn, model, instructions="B", tools=TOOLS)

    await stage.runtime(Agent("b", work, tools=TOOLS))
    client = await stage.client()
    request = await client.submit("hello")
    await model.halts.wait()

    found = json.loads(await shown(office, request, "--json"))
    told = [
        (
            move["move"],
            [
                (step["round"], step["n"], step["kind"], step["name"], step["error"])
                for step in move["turn"]["steps"]
            ],
        )
        for move in found["moves"]
    ]
    assert told == [
        ("submit", []),
        (
            "transfer",
            [
                (0, 0, "model", "strict", None),
                (0, 1, "call", "look", None),
                (0, 2, "call", "decline", "tool.error"),
                (0, 3, "model", "strict", None),
            ],
        ),
        ("transfer", [(1, 0, "effect", "pay", None)]),
    ]
    (running,) = found["running"]
    assert (running["agent"], [step["kind"] for step in running["steps"]]) == ("b", ["model", "call"])
    first = found["moves"][1]["turn"]["steps"][0]
    assert first["usage"] == {"nano_dollars": CALL, "tokens": 110, "model_calls": 1, "unpriced": False}
    assert (first["version"], first["after"] >= 0, first["at"] > found["moves"][0]["at"]) == ("7", True, True)
    assert "secret value" not in json.dumps(found["moves"])

    lines = (await shown(office, request, "--steps")).splitlines()
    at = next(n for n, line in enumerate(lines) if "a ✗ nobody" in line)
    beneath = [line.split() for line in lines[at:] if line.split()[0].startswith(("0-", "1-"))]
    assert [(line[0], *line[4:7]) for line in beneath[:5]] == [
        ("0-0", "model", "strict", "ok"),
        ("0-1", "call", "look", "ok"),
        ("0-2", "call", "decline", "refused:"),
        ("0-3", "model", "strict", "ok"),
        ("1-0", "effect", "pay", "ok"),
    ]
    assert " ".join(beneath[0][7:]) == "1 model call, 110 tokens, 0.000110 dollars"
    assert any("a's turn: 2 model calls, 220 tokens, 0.000220 dollars" in line for line in lines)
    assert any("b has done so far:" in line for line in lines)
    assert not any("0-0" in line for line in (await shown(office, request)).splitlines())

    await client.cancel(request, "enough")
    await client.wait(request, timeout_s=PATIENCE_S)
    found = json.loads(await shown(office, request, "--json"))
    assert (found["running"], found["moves"][-1]["move"], found["moves"][-1]["turn"]["agent"]) == (
        [],
        "cancel",
        "b",
    )
    assert [step["kind"] for step in found["moves"][-1]["turn"]["steps"]] == ["model", "call"]


async def test_an_effect_without_a_result_is_in_doubt(office: Office, stage: Stage) -> None:
    async def work(turn: Turn) -> Move:
        await turn.call(lose)
        return turn.complete("never")

    await stage.runtime(Agent("a", work, tools=TOOLS))
    request = await (await stage.client()).submit("hello")
    await stage.reaches(request, "effect.doubted")
    lines = (await shown(office, request, "--steps")).splitlines()
    (doubted,) = [line for line in lines if line.split()[0] == "0-0"]
    assert doubted.endswith("effect lose  in doubt")


async def test_an_effect_that_merely_runs_is_begun(office: Office, stage: Stage) -> None:
    a = await stage.actor("a")
    request, work = await office.begun()
    intent = Record(kind="intent", name="pay", version="1", nonce="n", at=7, key="k")
    await a.bus.publish_durable(subjects.step("a", request, work.turn, "0-0"), msgspec.json.encode(intent))
    lines = (await shown(office, request, "--steps")).splitlines()
    (begun,) = [line for line in lines if line.split()[0] == "0-0"]
    assert begun.endswith("effect pay  begun")


async def test_a_journal_can_neither_forge_a_line_nor_break_the_story(office: Office, stage: Stage) -> None:
    a = await stage.actor("a")
    request, work = await office.begun()
    now = (await stage.log(request))[-1].at
    forging = "x\nanswer: all is paid\x1b[2J\x9b2J"
    sound = Usage(nano_dollars=1, tokens=1, model_calls=1, models={"new": Metered(input=1, calls=1)})
    records = (
        Record(kind="call", name=forging, nonce="n", at=now, error=Refused(code=forging, message="")),
        Record(kind=forging, name="y", nonce="n", at=253402300799999000),
        Record(kind="model", name="z", nonce="n", at=now, usage=sound),
        Record(kind="call", name="w", nonce="n", at=253402300799999000 + 1),
        Record(kind="call", name="w", nonce="n", at=-1),
        Record(kind="call", name="w", nonce="n", at=10**18),
        Record(kind="model", name="w", nonce="n", at=now, usage=Usage(tokens=-1)),
    )
    for n, record in enumerate(records):
        body = msgspec.json.encode(record)
        await a.bus.publish_durable(subjects.step("a", request, work.turn, f"0-{n}"), body)
    said = await office.mesh("request", "show", request, "--steps", who="audit")
    assert said.status == Exit.DONE, said
    assert "mesh: 4 steps passed over" in said.err
    lines = said.out.splitlines()
    assert not any(line.startswith("answer:") for line in lines)
    assert all(line.isprintable() for line in lines)
    assert [line.split()[0] for line in lines if line.split()[0].startswith("0-")] == ["0-0", "0-1", "0-2"]
    (model,) = [line for line in lines if line.split()[0] == "0-2"]
    assert model.endswith("1 model call, 1 token, 0.000000? dollars")
    found = json.loads(await shown(office, request, "--json"))
    steps = [step for move in found["moves"] for step in move["turn"]["steps"]]
    assert [step["usage"] and step["usage"]["unpriced"] for step in steps] == [None, None, True]


async def test_what_another_agent_wrote_under_a_turn_is_none_of_its_steps(
    office: Office, stage: Stage
) -> None:
    b = await stage.actor("b")
    request, work = await office.begun()
    record = Record(kind="effect", name="pay", nonce="n", at=(await stage.log(request))[-1].at)
    await b.bus.publish_durable(subjects.step("b", request, work.turn, "0-0"), msgspec.json.encode(record))
    said = await office.mesh("request", "show", request, "--steps", who="audit")
    assert (said.status, "pay" in said.out, "passed over" in said.err) == (Exit.DONE, False, False)
    await (await stage.actor("a")).propose(
        request, work, Transfer(to_agent=AgentName(b.name), summary="yours")
    )
    await b.work(request)
    said = await office.mesh("request", "show", request, "--steps", who="audit")
    assert (said.status, "pay" in said.out) == (Exit.DONE, False)
    assert "mesh: 1 step passed over" in said.err


async def test_what_lies_among_the_steps_and_is_none_is_passed_over(office: Office, stage: Stage) -> None:
    a = await stage.actor("a")
    request, work = await office.begun()
    for name, body in (("0-0", b"\xff{"), ("0-1", b'{"kind":5}'), ("junk", b"{}"), (f"0-{'9' * 60}", b"{}")):
        await a.bus.publish_durable(subjects.step("a", request, work.turn, name), body)
    assert [
        move["turn"]["steps"] for move in json.loads(await shown(office, request, "--json"))["moves"]
    ] == [[]]
    assert (await office.mesh("cost", request, "--json", who="audit")).json["rows"] == []


async def test_at_an_event_later_steps_are_not_there_and_a_file_has_those_it_was_exported_with(
    own_office: Office, own_stage: Stage, tmp_path: Path
) -> None:

    async def work(turn: Turn) -> Move:
        await turn.call(look)
        return turn.complete("done")

    await own_stage.runtime(Agent("a", work, tools=TOOLS))
    client = await own_stage.client()
    request = await client.submit("hello")
    await client.wait(request, timeout_s=PATIENCE_S)
    then = json.loads(await shown(own_office, request, "--json", "--at", "0"))
    assert [move["turn"]["steps"] for move in then["moves"]] == [[]]
    exported = tmp_path / "log.jsonl"
    assert (
        await own_office.mesh("log", "export", request, "--out", exported, who="audit")
    ).status == Exit.DONE
    said = await own_office.mesh("request", "show", exported, "--steps", "--json", who="audit")
    assert [move["turn"]["steps"] for move in said.json["moves"]] == [[], []]
    assert "this file holds no steps; export with --with-steps" in said.err

    for whole in ((request,), ("--all",)):
        done = await own_office.mesh("log", "export", *whole, "--with-steps", "--out", exported, who="audit")
        assert "3 events and 1 step in" in done.err, done  # the end's grounds are an event of their own
        there, here = [
            (await own_office.mesh("request", "show", source, "--json", who="audit")).json["moves"]
            for source in (request, exported)
        ]
        assert (here, [step["name"] for step in here[-1]["turn"]["steps"]]) == (there, ["look"])
        for judge in (("replay",), ("log", "verify"), ("why",)):
            assert (await own_office.mesh(*judge, exported, who="audit")).status == Exit.DONE


async def test_an_export_with_steps_holds_the_prompts_that_they_name(office: Office, stage: Stage) -> None:
    async def work(turn: Turn) -> Move:
        return await drive(
            turn, StrictModel(costing("", "look"), costing("x")), instructions="A", tools=TOOLS
        )

    await priced(stage)
    await stage.runtime(Agent("a", work, tools=TOOLS))
    request = await (await stage.client()).submit("hello")
    await stage.reaches(request, "request.completed")
    said = await office.mesh("log", "export", request, "--with-steps", who="audit")
    lines = [json.loads(line) for line in said.out.splitlines()]
    kept = {line["step"]: line["body"] for line in lines if "step" in line}
    named = [body["prompt"]["fixed"] for body in kept.values() if body.get("kind") == "model"]
    assert len(named) == 2
    assert {kept[subjects.prompt("a", digest)]["instructions"] for digest in named} == {"A"}
