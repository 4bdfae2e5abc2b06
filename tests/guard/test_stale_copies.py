"""A guard's copy of a request falls behind when another guard writes: nothing is late because of that."""

from mesh.guard.processor import RequestProcessor
from protocol.domain.decider import Decided
from protocol.wire import events
from protocol.wire.commands import Ask, Doubt, MoveProposed, Reply, ReportInDoubt, Settle, Submit
from protocol.wire.ids import TurnId
from tests.guard.stage import Stage, control_hearing, proposal_hearing, submit_hearing


async def _opened(stage: Stage) -> tuple[str, TurnId, list[RequestProcessor]]:
    """Return a request, its turn, and two courts of which only the first knows it."""
    courts = [await stage.processor(f"court{number}") for number in range(2)]
    request = (await stage.client()).new_id()
    ruling = await courts[0].process(submit_hearing(request, Submit(text="hello")))
    assert isinstance(ruling, Decided)
    assert isinstance(ruling.event, events.RequestOpened)
    return request, ruling.event.work.turn, courts


async def test_a_reply_to_an_ask_that_another_guard_admitted_is_decided(stage: Stage) -> None:
    request, turn, (first, other) = await _opened(stage)
    ask = MoveProposed(turn=turn, round=0, move=Ask(to_agent="c1", question="which?"))  # type: ignore[arg-type]
    await other.process(proposal_hearing(request, "a", ask))
    reply = Reply(id="r", turn=turn, round=0, value="this")
    ruling = await first.process(control_hearing(request, "c1", reply, "client"))
    assert isinstance(ruling, Decided)
    assert isinstance(ruling.event, events.TurnResumed)


async def test_a_doubt_that_another_guard_recorded_is_settled(stage: Stage) -> None:
    request, turn, (first, other) = await _opened(stage)
    doubt = ReportInDoubt(turn=turn, round=0, effect=Doubt(step="0-0", action="pay"))
    await other.process(proposal_hearing(request, "a", doubt))
    settle = Settle(id="s", turn=turn, round=0, outcome="not_done")
    ruling = await first.process(control_hearing(request, "op", settle))
    assert isinstance(ruling, Decided)
    assert isinstance(ruling.event, events.EffectSettled)
