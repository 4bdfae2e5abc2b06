"""`mesh cost` on the bus: every call that was paid for is in the sum, once, whatever became of its turn."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from mesh.agent import Turn
from mesh.agent.definition import Agent
from mesh.bus.event_log import JetStreamLog
from mesh.cli.exits import Exit
from mesh.model.loop import drive
from mesh.model.port import Reply, ToolCall
from mesh.testing import InMemoryGuard, StrictModel
from protocol.wire import subjects
from protocol.wire.commands import Report, Usage
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Move, Transfer
from protocol.wire.prices import MTOK, Metered, Tokens
from protocol.wire.records import Record
from tests.guard.stage import FLEET, Stage
from tests.servers import PATIENCE_S, until
from tests.system.office import Office

TOKENS = Tokens(input=70, cache_read=20, cache_write=6, cache_write_1h=4, output=10, thinking=3)
NANO = 1_000
"""What a token costs."""
CALL = TOKENS.total * NANO


def costing(text: str = "", *wanted: str, model: str = "big") -> Reply:
    """Return a reply that costs `CALL`."""
    return Reply(
        text=text,
        calls=tuple(ToolCall(name, name, {}) for name in wanted),
        usage=Usage(tokens=TOKENS.total, model_calls=1),
        tokens=TOKENS,
        model=model,
    )


async def priced(stage: Stage) -> None:
    kinds = ("input", "output", "cache_read", "cache_write", "cache_write_1h")
    prices = {"big": dict.fromkeys(kinds, NANO * MTOK)}
    await (await stage.bus("admin")).publish_durable(subjects.PRICES, msgspec.json.encode(prices))
    (guard,) = stage._guards
    await until(lambda: guard._context._prices == prices)


class Halting(StrictModel):
    """Says its replies, and then nothing more."""

    def __init__(self, *steps: Reply) -> None:
        super().__init__(*steps)
        self.halts = asyncio.Event()

    async def reply(self, prompt: Any, hear: Any = None) -> Reply:
        if not self._steps:
            self.halts.set()
            await asyncio.Event().wait()
        return await super().reply(prompt, hear)


async def driven_by(stage: Stage, name: str, model: StrictModel) -> None:
    async def work(turn: Turn) -> Move:
        return await drive(turn, model, instructions="Be brief.", tools=())

    await stage.runtime(Agent(name, work))


async def costs(office: Office, *arguments: object) -> dict[str, Any]:
    said = await office.mesh("cost", *arguments, "--json", who="audit")
    assert said.status == Exit.DONE, said.err
    found: dict[str, Any] = said.json
    return found


def sums(found: dict[str, Any]) -> dict[str, int]:
    return {row["name"]: row["nano_dollars"] for row in found["rows"]}


async def test_what_a_cancelled_turn_spent_is_counted_once_while_it_runs_and_afterwards(
    own_office: Office, own_stage: Stage, tmp_path: Path
) -> None:
    await priced(own_stage)
    model = Halting(costing("", "no_such"))

    async def work(turn: Turn) -> Move:
        if not turn.past:
            first = StrictModel(costing("", "no_such"), costing("never mind"))
            await drive(turn, first, instructions="Be brief.", tools=())
            return turn.transfer("nobody", summary="refused")
        return await drive(turn, model, instructions="Be briefer.", tools=())

    await own_stage.runtime(Agent("a", work))
    client = await own_stage.client()
    request = await client.submit("hello")
    await model.halts.wait()
    assert sums(await costs(own_office, "--by", "request")) == {request: 3 * CALL}
    await client.cancel(request, "enough")
    assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "cancelled"
    assert sums(await costs(own_office, request)) == {"a": 3 * CALL}
    exported = tmp_path / "log.jsonl"
    exported.write_bytes(b"\n".join(await own_stage.bodies(request)))
    from_file = await own_office.mesh("cost", exported, "--json", who="audit")
    assert from_file.json["total"]["nano_dollars"] == 2 * CALL
    assert "the cost of 1 turn is missing or not whole" in from_file.err


async def test_what_was_refused_and_then_cut_short_by_the_clock_is_counted_once(
    office: Office, stage: Stage
) -> None:
    await priced(stage)

    async def work(turn: Turn) -> Move:
        if not turn.past:
            await drive(turn, StrictModel(costing("first")), instructions="Be brief.", tools=())
            return turn.transfer("nobody", summary="refused")
        model = Halting(costing("", "no_such"))
        return await drive(turn, model, instructions=f"Round {turn.round}.", tools=())

    await stage.runtime(Agent("a", work))
    request = await (await stage.client()).submit("hello", policy="brisk")
    await stage.reaches(request, "escalation.raised")
    found = await costs(office, request)
    rounds = [event.round for event in await stage.log(request) if event.round >= 0]
    assert sums(found) == {"a": (1 + max(rounds)) * CALL}


async def test_costs_are_told_by_turn_with_every_kind_of_token_and_a_total(
    own_office: Office, own_stage: Stage
) -> None:
    await priced(own_stage)
    await driven_by(own_stage, "a", StrictModel(costing("", "no_such"), costing("done")))
    await driven_by(own_stage, "b", StrictModel(costing("done", model="unheard-of")))
    client = await own_stage.client()
    for to in ("a", "b"):
        await client.wait(await client.submit("hello", to=to), timeout_s=PATIENCE_S)
    found = await costs(own_office, "--by", "turn")
    assert [row["name"].split()[0] for row in found["rows"]] == ["a", "b"]
    assert found["rows"][0] | {"name": "a"} == {
        "name": "a",
        "nano_dollars": 2 * CALL,
        "model_calls": 2,
        "unpriced_calls": 0,
        "tokens": 220,
        "prompt_tokens": 200,
        "input_tokens": 140,
        "cache_read_tokens": 40,
        "cache_write_tokens": 20,
        "cached_share": 0.2,
        "output_tokens": 20,
        "thinking_tokens": 6,
    }
    assert (found["total"]["tokens"], found["total"]["nano_dollars"]) == (330, 2 * CALL)
    told = await own_office.mesh("cost", "--by", "model", who="audit")
    lines = [line.split("\t") for line in told.out.splitlines()]
    assert lines[0][:4] == ["model", "dollars", "calls", "tokens"]
    assert [line[:3] for line in lines[1:]] == [
        ["big", "0.000220", "2"],
        ["unheard-of", "0.000000?", "1"],
        ["total", "0.000220?", "3"],
    ]
    assert "1 call at no known price: say [prices] of unheard-of" in told.err
    assert told.err.rstrip().endswith("for requests that begin from then on")


async def test_what_has_aged_out_of_the_log_does_not_stop_the_sum(
    own_office: Office, own_stage: Stage
) -> None:
    guard, report = InMemoryGuard(FLEET), Report(usage=Usage(nano_dollars=CALL))
    guard.submit("hello")
    guard.move(Transfer(to_agent=AgentName("b"), summary="please"), report)
    guard.move(Complete(answer="done"), report)
    own_stage.spoiled.add(guard.request)
    after = 0
    for event in guard.events[1:]:
        after = await own_stage.forge(event, event.to, guard.request, after)
    for arguments in ((), (guard.request,)):
        assert sums(await costs(own_office, *arguments, "--by", "edge")) == {"? -> a": CALL, "a -> b": CALL}
    for command in (("request", "show"), ("request", "watch"), ("why",)):
        said = await own_office.mesh(*command, guard.request, who="audit")
        assert (said.status, said.out) == (Exit.FAILED, ""), said
        assert "event 0 is missing" in said.err
        assert f"mesh log verify {guard.request}" in said.err


async def test_what_no_report_could_say_is_not_counted_from_a_journal_either(
    office: Office, stage: Stage
) -> None:
    a = await stage.actor("a")
    request, work = await office.begun()
    now = (await stage.log(request))[-1].at
    steering = {"big\x1b[2J\ntotal\t9": Metered(input=5, calls=1)}
    told = (
        (now, Usage(nano_dollars=-(10**15))),
        (now, Usage(nano_dollars=1 << 63)),
        (now, Usage(models={f"m{n}": Metered(calls=1) for n in range(33)})),
        (-1, Usage(nano_dollars=CALL)),
        (253402300799999999 + 1, Usage(nano_dollars=CALL)),
        (now, Usage(nano_dollars=CALL, tokens=5, model_calls=1, models=steering)),
    )
    for n, (at, usage) in enumerate(told):
        record = Record(kind="model", name="m", version="1", nonce="n", at=at, usage=usage)
        body = msgspec.json.encode(record)
        await a.bus.publish_durable(subjects.step("a", request, work.turn, f"0-{n}"), body)
    said = await office.mesh("cost", request, "--by", "model", who="audit")
    lines = [line.split("\t")[0] for line in said.out.splitlines()]
    assert lines == ["model", "big\\x1b[2J total 9", "(no model named)", "total"]
    assert "mesh: 5 steps passed over" in said.err
    assert all(char.isprintable() or char in "\n\t" for char in said.out + said.err)
    assert sums(await costs(office, request)) == {"a": CALL}


async def test_an_event_that_cannot_be_read_leaves_out_its_own_request_alone(
    own_office: Office, own_stage: Stage, tmp_path: Path
) -> None:
    a = await own_stage.actor("a")
    requests = []
    for _ in range(2):
        request, work = await own_office.begun()
        await a.propose(request, work, Complete(answer="done"), report=Report(usage=Usage(nano_dollars=CALL)))
        await own_stage.reaches(request, "request.completed")
        requests.append(request)
    broken, sound = requests
    own_stage.spoiled.add(broken)
    newer = b'{"type":"request.pondered","v":9,"request":"%s","n":2}' % broken.encode()
    stored = await JetStreamLog(await own_stage.bus("audit")).read(broken)
    await own_stage.forge(newer, "_", broken, stored[-1].seq)
    exported = tmp_path / "log.jsonl"
    bodies = [*(each.data for each in stored), newer, *await own_stage.bodies(sound)]
    exported.write_bytes(b"\n".join(bodies))
    for source in ((), (exported,)):
        said = await own_office.mesh("cost", *source, "--by", "request", "--json", who="audit")
        assert said.status == Exit.FAILED, said
        assert sums(said.json) == {broken: CALL, sound: CALL}  # what was read before stays counted
        assert f"mesh: {broken} is not counted whole: " in said.err
        assert f"mesh log verify {broken}" in said.err
        assert f"mesh: {sound}" not in said.err


async def test_a_request_that_is_not_there_is_said(office: Office) -> None:
    said = await office.mesh("cost", "c1_01ARZ3NDEKTSV4RRFFQ69G5FAV", who="audit")
    assert (said.status, said.out) == (Exit.FAILED, "")
    assert "no request" in said.err
