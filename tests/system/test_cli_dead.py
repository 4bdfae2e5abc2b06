"""`mesh dead resend`: what a guard could not act on goes back to its queue, once the cause is mended."""

import base64
from typing import Any

import msgspec
import pytest

from mesh.cli.exits import Exit
from protocol.wire import codec, events, subjects
from protocol.wire.commands import Assign, Cancel, Freeze, MoveProposed, Resolve, Submit
from protocol.wire.config import PARTITIONS
from protocol.wire.ids import request_id
from protocol.wire.moves import Escalate, Transfer
from protocol.wire.records import dead_letter
from tests.certain import is_
from tests.guard.stage import FLEET, Stage
from tests.system.office import Office


async def seq_of(office: Office, request: str) -> int:
    """Return the number of the newest dead letter about a request."""
    listed = (await office.mesh("dead", "ls", "--json")).json
    return int([each["seq"] for each in listed if each["request"] == request][-1])


async def kept(
    stage: Stage, subject: str, body: bytes, *, by: str = "guard", code: str = "x", **more: Any
) -> int:
    """Write a dead letter as `by` does, and return its number."""
    letter = dead_letter(at=1, by=by, code=code, detail="because", subject=subject, data=body)
    letter = msgspec.structs.replace(letter, **more)
    ack = await (await stage.bus(by)).publish_durable(subject_of(by), msgspec.json.encode(letter))
    return ack.seq


def subject_of(by: str) -> str:
    return subjects.dead_from("op") if by == "guard" else subjects.dead(by)


async def test_what_still_cannot_be_decided_is_a_dead_letter_again(office: Office, stage: Stage) -> None:
    request = (await stage.client()).new_id().replace("c1_", "a_")
    body = codec.encode(Submit(text="hello"))
    await (await stage.bus("a")).publish_durable(subjects.prop("a", request), body)
    await stage.buried("not_allowed", request=request)
    seq = await seq_of(office, request)
    again = await office.mesh("dead", "resend", seq, who="admin")
    assert again.status == Exit.REFUSED, again
    assert "not_allowed" in again.err
    assert f"dead letter {seq + 1}" in again.err


async def test_a_control_message_is_obeyed_once_there_is_what_it_speaks_of(
    office: Office, stage: Stage
) -> None:
    request = await office.escalated()
    turn = (await office.last(request)).id
    guard = next(iter(stage._guards))
    guard._context.fleet = msgspec.structs.replace(guard._context.fleet, operators=())
    await stage.control(request, Assign(id="x", turn=turn, to="rosa", by="kim"))  # type: ignore[arg-type]
    await stage.buried("not_allowed", request=request)
    guard._context.fleet = msgspec.structs.replace(guard._context.fleet, operators=FLEET.operators)
    seq = await seq_of(office, request)
    done = await office.mesh("dead", "resend", seq, who="admin")
    assert (done.status, done.out) == (Exit.DONE, f"{request} is decided: escalation.assigned (event 2)\n"), (
        done
    )
    event = is_(await office.last(request), events.EscalationAssigned)
    assert (event.sender, event.by, event.person) == ("op", "kim", "rosa")
    again = await office.mesh("dead", "resend", seq, who="admin")
    assert again.status == Exit.FAILED
    assert "decided before, by event 2" in again.err


async def test_a_proposal_keeps_its_sender_and_its_trace(office: Office, stage: Stage) -> None:
    request, work = await office.begun()
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    move = Transfer(to_agent="b", summary="please")  # type: ignore[arg-type]
    body = codec.encode(MoveProposed(turn=work.turn, round=0, move=move))
    headers = {"traceparent": trace, "Nats-Expected-Stream": "NOPE"}
    subject = f"mesh.prop.{subjects.partition(request, PARTITIONS)}.a.{request}"
    seq = await kept(stage, subject, body, code="guard_failed", headers=headers, sender="a", request=request)
    done = await office.mesh("dead", "resend", seq, who="admin")
    assert done.status == Exit.DONE, done
    assert "handoff.admitted (event 1)" in done.out
    got = await (await stage.bus("admin")).request(f"$JS.API.DIRECT.GET.LOG.{subjects.evt('b', request)}")
    assert got.headers["traceparent"] == trace


async def test_what_comes_too_late_is_said_to(office: Office, stage: Stage) -> None:
    request = await office.escalated()
    turn = (await office.last(request)).id
    control = Resolve(id="x", turn=turn, to="b")  # type: ignore[arg-type]
    subject = f"mesh.ctl.{subjects.partition(request, PARTITIONS)}.op.{request}"
    seq = await kept(stage, subject, codec.encode(control), sender="op", request=request)
    await stage.control(request, Cancel(id="c"))
    await stage.reaches(request, "request.cancelled")
    done = await office.mesh("dead", "resend", seq, who="admin")
    assert done.status == Exit.REFUSED, done
    assert "cancelled: it was over, so nothing came of it" in done.err


@pytest.mark.parametrize(
    ("letter", "said"),
    [
        pytest.param({"by": "a"}, "in a's own list", id="an-agents-own"),
        pytest.param({"truncated": True}, "only the beginning", id="cut-off"),
        pytest.param({"subject": "mesh.timer.fire.3.{request}"}, "is a timer", id="a-timer"),
        pytest.param({"subject": "mesh.ctl.3.op._"}, "mesh freeze", id="about-the-mesh"),
        pytest.param({"code": "request_exists"}, "mesh request submit", id="another-ones-id"),
        pytest.param({"code": "stale_id"}, "needs a new one: mesh request submit", id="too-old"),
        pytest.param({"subject": "mesh.prop.3.c1.nothing"}, "its request id cannot be one", id="no-id"),
    ],
)
async def test_what_would_be_in_vain_is_refused_with_what_to_do_instead(
    office: Office, stage: Stage, letter: dict[str, Any], said: str
) -> None:
    request = request_id("c1", 1_000, b"0123456789")
    subject = letter.pop("subject", "mesh.prop.3.c1.{request}").format(request=request)
    body = codec.encode(Freeze(id="x"))
    before = await stage.last_seq("PROP"), await stage.last_seq("CTL")
    seq = await kept(stage, subject, body, **({"request": request} | letter))
    done = await office.mesh("dead", "resend", seq, who="admin")
    assert done.status == Exit.FAILED, done
    assert said in done.err
    assert (await stage.last_seq("PROP"), await stage.last_seq("CTL")) == before


async def test_only_the_admin_puts_letters_back(office: Office, stage: Stage) -> None:
    request, work = await office.begun()
    move = Escalate(summary="help")
    body = codec.encode(MoveProposed(turn=work.turn, round=0, move=move))
    seq = await kept(stage, f"mesh.prop.3.a.{request}", body, sender="a", request=request)
    done = await office.mesh("dead", "resend", seq, who="op")
    assert done.status == Exit.USAGE, done
    assert "not allowed" in done.err
    assert await stage.types(request) == ["request.opened"]
    assert (await office.mesh("dead", "resend", 999_999, who="admin")).status == Exit.FAILED


async def test_without_a_guard_it_waits_in_its_queue(
    office: Office, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mesh.ops import dead_letters

    request, work = await office.begun()
    for guard in tuple(stage._guards):
        await stage.dismiss(guard)
    monkeypatch.setattr(dead_letters, "_PROPOSAL_S", 0.5)
    body = codec.encode(MoveProposed(turn=work.turn, round=0, move=Escalate(summary="help")))
    seq = await kept(stage, f"mesh.prop.3.a.{request}", body, sender="a", request=request)
    done = await office.mesh("dead", "resend", seq, who="admin")
    assert done.status == Exit.TIMED_OUT, done
    assert "back in its queue" in done.err
    await stage.ready(await stage.guard("late"))
    await stage.reaches(request, "escalation.raised")


def test_a_letters_bytes_are_what_was_said() -> None:
    letter = dead_letter(at=1, by="guard", code="x", detail="", subject="s", data=b"\x00\xff")
    assert base64.b64decode(letter.data) == letter.original == b"\x00\xff"


async def test_a_letter_that_was_given_up_at_once_says_so(office: Office, stage: Stage) -> None:
    subject = subjects.prop("c1", (await stage.client()).new_id())
    for delivered, said in ((1, "after 1 delivery\n"), (3, "after 3 deliveries\n")):
        seq = await kept(stage, subject, b"{}", delivered=delivered)
        assert said in (await office.mesh("dead", "show", seq)).out
