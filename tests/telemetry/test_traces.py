"""One trace for each request: whose child each span is, what it says, and what no span ever says."""

import contextlib
import json
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from mesh.agent import Turn, agent, tool
from mesh.agent.definition import Agent
from mesh.agent.errors import Permanent, ToolError
from mesh.telemetry import tracing
from protocol.wire import codec, subjects
from protocol.wire.commands import Freeze, MoveProposed, ReplyToAsk, Submit
from protocol.wire.events import type_of
from protocol.wire.ids import AgentName, TurnId
from protocol.wire.moves import Complete, Move, Transfer
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S
from tests.telemetry.seen import Readings, Seen, id_of, parent_of, said, trace_of, traceparent_of

CANARY = "xylophone"
NOBODYS = codec.encode(Submit(text="hello", to=AgentName("e")))
"""For an agent that none of these tests runs."""
STRANGERS = f"00-{'ab' * 16}-{'cd' * 8}-01"


@tool
async def look(order: str) -> str:
    """Look."""
    return f"{CANARY} {order}"


@tool(effect="idempotent")
async def pay(order: str, idempotency_key: str = "") -> str:
    """Pay."""
    raise ToolError(f"no money for {CANARY}")


@agent(name="a", tools=[look, pay], version="7")
async def a(turn: Turn) -> Move:
    found = await turn.call(look, order=CANARY)
    return turn.transfer("b", summary=f"{CANARY}, please", facts={"found": found})


@agent(name="b")
async def b(turn: Turn) -> Move:
    return turn.complete({"said": CANARY})


async def completed(stage: Stage, **more: Any) -> str:
    """Run a request through two agents; return its id."""
    await stage.runtime(a)
    await stage.runtime(b)
    client = await stage.client()
    request: str = await client.submit(f"hello {CANARY}", facts={"name": CANARY}, **more)
    assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "completed"
    await stage.drained()
    return request


# --- one trace ------------------------------------------------------------------------------------


async def test_a_request_is_one_trace_through_client_guard_and_two_agents(stage: Stage, seen: Seen) -> None:
    request = await completed(stage)
    await seen.one(request, "invoke_agent b")
    spans = {f"{span.name} {said(span).get('mesh.move', '')}".strip(): span for span in seen.of(request)}
    assert [*spans] == [
        "send mesh.prop submit",
        "process mesh.prop submit",
        "invoke_agent a transfer",
        "execute_tool look",
        "execute_tool transfer_to_b b transfer",
        "process mesh.prop transfer",
        "invoke_agent b complete",
        "send mesh.prop complete",
        "process mesh.prop complete",
    ]
    assert len({trace_of(span) for span in spans.values()}) == 1
    parents = {id_of(span): name for name, span in spans.items()}
    assert {name: parents.get(parent_of(span) or 0) for name, span in spans.items()} == {
        "send mesh.prop submit": None,
        "process mesh.prop submit": "send mesh.prop submit",
        "invoke_agent a transfer": "process mesh.prop submit",
        "execute_tool look": "invoke_agent a transfer",
        "execute_tool transfer_to_b b transfer": "invoke_agent a transfer",
        "process mesh.prop transfer": "execute_tool transfer_to_b b transfer",
        "invoke_agent b complete": "process mesh.prop transfer",
        "send mesh.prop complete": "invoke_agent b complete",
        "process mesh.prop complete": "send mesh.prop complete",
    }


async def test_spans_say_what_the_conventions_want_and_are_linked_to_what_they_answer(
    stage: Stage, seen: Seen
) -> None:
    request = await completed(stage)
    turn = await seen.one(request, "invoke_agent a")
    assert said(turn) | {"mesh.turn": ""} == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "a",
        "gen_ai.agent.version": "7",
        "gen_ai.conversation.id": request,
        "mesh.request": request,
        "mesh.turn": "",
        "mesh.round": 0,
        "mesh.depth": 0,
        "mesh.delivery": 1,
        "mesh.move": "transfer",
    }
    handoff = await seen.one(request, "execute_tool transfer_to_b b")
    assert {key: value for key, value in said(handoff).items() if key.startswith("gen_ai")} == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "transfer_to_b",
        "gen_ai.tool.type": "function",
        "gen_ai.agent.name": "a",
        "gen_ai.conversation.id": request,
        "gen_ai.transfer.mode": "pass_control",
        "gen_ai.transfer.target.name": "b",
    }
    submitted = seen.named(request, "send mesh.prop")[0]
    verdict = seen.named(request, "process mesh.prop")[0]
    assert (submitted.kind, verdict.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert [link.context.span_id for link in verdict.links] == [id_of(submitted)]
    assert said(verdict)["messaging.system"] == "nats"
    assert said(verdict)["messaging.operation.type"] == "process"
    assert said(verdict)["mesh.verdict"] == "admitted"
    assert said(verdict)["mesh.event.type"] == "request.opened"


async def test_each_event_names_the_span_that_decided_it_and_its_header_says_the_same(
    stage: Stage, seen: Seen
) -> None:
    request = await completed(stage)
    await seen.one(request, "invoke_agent b")
    log = await stage.log(request)
    deciding = [traceparent_of(span) for span in seen.named(request, "process mesh.prop")]
    opened, admitted, completing = deciding
    assert [(type_of(event), event.trace) for event in log] == [
        ("request.opened", opened),
        ("handoff.admitted", admitted),
        ("facts.withheld", completing),
        ("request.completed", completing),
    ]
    admin = await stage.bus("admin")
    for event in log:
        stored = await admin.request(f"$JS.API.DIRECT.GET.LOG.{subjects.evt(event.to, request)}")
        newest = codec.decode_event(stored.data)
        assert stored.headers["traceparent"] == newest.trace


async def test_a_consequence_and_a_persons_word_belong_to_the_requests_own_trace(
    stage: Stage, seen: Seen
) -> None:
    broken = [Permanent(f"cannot, because of {CANARY}")]

    async def code(turn: Turn) -> Move:
        if broken:
            raise broken.pop()
        return turn.complete("done")

    await stage.runtime(Agent("c", code))
    client, operator = await stage.client(), await stage.client("op")
    request = await client.submit("hello", to="c")
    log = await stage.reaches(request, "escalation.raised")
    with trace.get_tracer("a person's own").start_as_current_span("typing"):
        await operator.control(request, Freeze(id="f1", by="Ada", reason=CANARY))
    log = await stage.reaches(request, "request.frozen")
    raised, ordered = (
        await seen.one(request, "process mesh.timer"),
        await seen.one(request, "process mesh.ctl"),
    )
    assert said(raised)["mesh.event.type"] == "escalation.raised"
    assert said(ordered)["mesh.move"] == "freeze"
    sent = await seen.one(request, "send mesh.ctl")
    own = trace_of(seen.named(request, "send mesh.prop")[0])
    assert trace_of(sent) != own, "a command has a trace of its own"
    assert [link.context.span_id for link in ordered.links] == [id_of(sent)]
    assert {event.trace[3:35] for event in log} == {own}
    failed = await seen.one(request, "invoke_agent c")
    assert (failed.status.status_code, said(failed)["error.type"]) == (StatusCode.ERROR, "permanent")
    assert CANARY not in seen.text()


async def test_a_consequence_and_what_is_kept_back_for_it_have_one_span(stage: Stage, seen: Seen) -> None:
    async def code(turn: Turn) -> Move:
        raise Permanent("cannot")

    await stage.runtime(Agent("c", code))
    client = await stage.client()
    request = await client.submit("hello", to="c", policy="unescalated")
    withheld, failed = (await stage.reaches(request, "request.failed"))[-2:]
    assert (type_of(withheld), type_of(failed)) == ("facts.withheld", "request.failed")
    span = await seen.one(request, "process mesh.timer")
    assert said(span)["mesh.event.type"] == "request.failed"
    assert len(seen.named(request, "process mesh.timer")) == 1
    assert withheld.trace == failed.trace == traceparent_of(span)


async def test_a_refusal_names_its_rule_and_no_target_that_there_is_not(
    stage: Stage, seen: Seen, readings: Readings
) -> None:
    async def code(turn: Turn) -> Move:
        if turn.refusals:
            return turn.complete("alone then")
        return Transfer(to_agent=CANARY, summary="somebody")  # type: ignore[arg-type]

    await stage.runtime(Agent("d", code))
    client = await stage.client()
    request = await client.submit("hello", to="d")
    assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "completed"
    await seen.one(request, "invoke_agent d", 2)
    refused = seen.named(request, "process mesh.prop")[1]
    assert said(refused)["mesh.verdict"] == "refused"
    assert said(refused)["mesh.rule"] == "known_agent"
    assert readings.value("mesh.handoffs", mesh__verdict="refused", mesh__rule="known_agent") == 1
    assert seen.named(request, "execute_tool transfer_to_unknown unknown")
    assert CANARY not in seen.text()


async def test_nothing_that_anybody_wrote_is_in_any_span(stage: Stage, seen: Seen) -> None:
    async def paying(turn: Turn) -> Move:
        with contextlib.suppress(ToolError):
            await turn.call(pay, order=CANARY)
        if not turn.past:
            return turn.ask(f"really {CANARY}?")
        return turn.fail(f"given up on {CANARY}")

    await stage.runtime(Agent("d", paying, tools=(pay,)))
    client = await stage.client()
    await completed(stage)
    request = await client.submit(CANARY, to="d", facts={CANARY: CANARY}, intent=None, conversation=CANARY)
    await stage.reaches(request, "turn.suspended")
    held = (await stage.log(request))[-1]
    reply = ReplyToAsk(id="r1", turn=held.turn, round=0, value=CANARY)
    await client.control(request, reply)
    await client.wait(request, timeout_s=PATIENCE_S)
    await seen.one(request, "invoke_agent d", 2)
    exported = seen.text()
    assert "execute_tool pay" in exported
    assert CANARY not in exported


# --- what a later delivery finds ------------------------------------------------------------------


async def test_a_step_that_is_read_from_the_journal_is_marked_and_has_no_span(
    stage: Stage, seen: Seen
) -> None:
    async def code(turn: Turn) -> Move:
        await turn.call(look, order="1")
        if not turn.past:
            return turn.transfer("nobody", summary="there is none")  # refused: the next round finds the step
        return turn.complete("done")

    await stage.runtime(Agent("c", code, tools=(look,)), "again")
    client = await stage.client()
    request = await client.submit("hello", to="c")
    assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "completed"
    second = await seen.one(request, "invoke_agent c", 2)
    assert len(seen.named(request, "execute_tool look")) == 1
    assert [(event.name, dict(event.attributes or {})) for event in second.events] == [
        ("mesh.step.replayed", {"mesh.step": "0-0", "mesh.kind": "call", "gen_ai.tool.name": "look"})
    ]


# --- who does not trace ---------------------------------------------------------------------------


async def test_a_process_that_does_not_trace_passes_on_what_came(untraced_stage: Stage) -> None:
    stage = untraced_stage
    assert not tracing.traced()
    await stage.runtime(a)
    await stage.runtime(b)
    request, bus = (await stage.client()).new_id(), await stage.bus("c1")
    submit = codec.encode(Submit(text="hello"))
    await bus.publish_durable(subjects.prop("c1", request), submit, {"traceparent": STRANGERS})
    log = await stage.reaches(request, "request.completed")
    assert {event.trace for event in log} == {STRANGERS}


@pytest.mark.parametrize("came", ["", "rubbish", STRANGERS.upper(), STRANGERS + "-x"])
async def test_what_is_no_trace_does_not_go_on(untraced_stage: Stage, came: str) -> None:
    request, bus = (await untraced_stage.client()).new_id(), await untraced_stage.bus("c1")
    headers = {"traceparent": came} if came else None
    await bus.publish_durable(subjects.prop("c1", request), NOBODYS, headers)
    opened = (await untraced_stage.reaches(request, "request.opened"))[0]
    assert opened.trace == ""
    assert b'"trace"' not in (await untraced_stage.bodies(request))[0]


# --- logs -----------------------------------------------------------------------------------------


def test_a_log_line_names_the_span_that_it_was_written_in(seen: Seen) -> None:
    assert tracing.add_ids(None, "info", {"event": "x"}) == {"event": "x"}
    with tracing.span("work"):
        line = tracing.add_ids(None, "info", {"event": "x"})
    work = seen.all[-1]
    assert line == {"event": "x", "trace_id": trace_of(work), "span_id": f"{id_of(work):016x}"}


def test_an_error_is_told_by_its_code_alone(seen: Seen) -> None:
    with pytest.raises(ValueError, match=CANARY), tracing.span("work"):
        raise ValueError(CANARY)
    work = json.loads(seen.all[-1].to_json())
    assert work["attributes"] == {"error.type": "ValueError"}
    assert (work["status"], work["events"]) == ({"status_code": "ERROR"}, [])


# --- counts ---------------------------------------------------------------------------------------


async def test_what_comes_to_nothing_is_counted_by_its_code(stage: Stage, readings: Readings) -> None:
    stranger, bus = (await stage.client()).new_id(), await stage.bus("a")
    nothing = MoveProposed(turn=TurnId("t"), round=0, move=Complete(answer="x"))
    await bus.publish_durable(subjects.prop("a", stranger), codec.encode(nothing))
    await stage.buried("unknown_request", request=stranger)
    await stage.drained()
    assert readings.value("mesh.dead_letters", mesh__code="unknown_request", mesh__by="guard") == 1
    assert readings.value("mesh.handoffs", mesh__verdict="rejected", mesh__from="a") == 1
    assert readings.value("mesh.guard.lag", mesh__kind="proposal") == 1


async def test_requests_and_turns_are_counted_where_they_happen(stage: Stage, readings: Readings) -> None:
    await completed(stage)
    for name in "ab":
        await stage.inbox_drained(name)
    assert readings.value("mesh.requests.opened") == readings.value("mesh.requests.ended") == 1
    assert readings.value("mesh.requests.ended", mesh__status="completed") == 1
    assert readings.value("mesh.requests.open") == 0
    for name in "ab":
        assert readings.value("mesh.queue.time", gen_ai__agent__name=name) == 1
        assert readings.value("mesh.turn.duration", gen_ai__agent__name=name) == 1


# --- trees ----------------------------------------------------------------------------------------


@agent(name="c")
async def lead(turn: Turn) -> Move:
    if turn.results:
        return turn.complete(", ".join(sorted(turn.results)))
    return turn.delegate(
        turn.task(name, summary="find it", to=worker) for name, worker in (("one", "a"), ("two", "b"))
    )


@agent(name="a")
async def first_worker(turn: Turn) -> Move:
    return turn.deliver("found")


@agent(name="b")
async def second_worker(turn: Turn) -> Move:
    return turn.deliver("found")


async def test_a_tree_is_one_trace_from_the_plan_over_its_tasks_to_the_join(stage: Stage, seen: Seen) -> None:
    for each in (lead, first_worker, second_worker):
        await stage.runtime(each)
    client = await stage.client()
    request = await client.submit(f"hello {CANARY}", to="c", policy="tree")
    outcome = await client.wait(request, timeout_s=PATIENCE_S)
    assert outcome.answer == "one, two", outcome
    await stage.drained()
    await seen.one(request, "process mesh.prop", 5)
    spans = seen.of(request)
    assert len({trace_of(span) for span in spans}) == 1
    (plan,) = [span for span in spans if said(span).get("mesh.event.type") == "turn.delegated"]
    opened = [span for span in spans if said(span).get("mesh.event.type") == "task.opened"]
    assert [parent_of(span) for span in opened] == [id_of(plan)] * 2
    rounds = [span for span in spans if span.name in ("invoke_agent a", "invoke_agent b")]
    assert {parent_of(span) for span in rounds} == {id_of(span) for span in opened}
    done = [span for span in spans if said(span).get("mesh.event.type") == "task.delivered"]
    (joined,) = [span for span in spans if said(span).get("mesh.event.type") == "turn.resumed"]
    assert parent_of(joined) == id_of(max(done, key=lambda span: span.start_time or 0))
    _, last = [span for span in spans if span.name == "invoke_agent c"]
    assert parent_of(last) == id_of(joined)
