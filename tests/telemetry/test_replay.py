"""Replay is exact with traces and without them, and a trace changes no verdict."""

import msgspec

from mesh.replay.rejudge import rejudge
from protocol.wire import codec
from protocol.wire.commands import Complete
from tests.golden.make import LOGS
from tests.unit.protocol.worlds import Court, transfer

TRACE = "00-{:032x}-{:016x}-01"


def _played(traced: bool) -> list[bytes]:
    played = Court(traced=traced)
    played.submit("hello")
    played.move(transfer("b"))
    played.move(transfer("nobody"))
    played.fail("model.overloaded")
    played.wait(60)
    played.move(Complete(answer="done"))
    return played.bodies


def test_a_log_with_traces_is_judged_again_to_the_letter() -> None:
    bodies = _played(traced=True)
    happened = [codec.decode_event(body) for body in bodies]
    assert [event.trace for event in happened] == [TRACE.format(7, n + 1) for n in range(len(happened))]
    assert rejudge(bodies).same


def test_a_trace_changes_nothing_but_itself_and_the_chain() -> None:
    with_, without = (
        [msgspec.structs.replace(codec.decode_event(body), trace="", prev="") for body in _played(traced)]
        for traced in (True, False)
    )
    assert with_ == without


def test_a_log_from_before_there_were_traces_is_judged_again_to_the_letter() -> None:
    bodies = (LOGS / "long-story.jsonl").read_bytes().splitlines()
    assert not any(b'"trace"' in body for body in bodies)
    assert rejudge(bodies).same


def test_a_trace_that_was_changed_afterwards_breaks_the_chain() -> None:
    bodies = _played(traced=True)
    bodies[1] = bodies[1].replace(TRACE.format(7, 2).encode(), TRACE.format(8, 2).encode())
    assert rejudge(bodies).breaks
