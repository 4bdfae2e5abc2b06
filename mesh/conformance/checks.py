"""The checks of an agent, and the run of all of them."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from mesh.conformance.stage import COMES_S, FOUND, READY_S, SECRET, Stage, Wrong, staged
from mesh.errors import BusError
from protocol.wire import codec, events
from protocol.wire.commands import Failure, Freeze, MoveProposed, Report, ReportFailure, Thaw, Usage
from protocol.wire.errors import Malformed
from protocol.wire.events import VERSION
from protocol.wire.handoff import Fact
from protocol.wire.ids import RequestId
from protocol.wire.records import DeadLetter

_WORKS_S = 3
"""How long an agent works on a request that is killed or frozen meanwhile."""
_SEVERAL = 4
"""Requests that wait at once."""
_BESIDE_S = 1.5
"""How long an agent works on each of them."""
HIDDEN = Fact(key="hidden", value=1, labels=(SECRET,))
REPLY = "the reply"
"""To every question."""


Try = Callable[[Stage], Awaitable[None]]
"""Raises Wrong."""


class Check(NamedTuple):
    name: str
    section: str
    """The heading in docs/wire/agent.md."""
    run: Try


async def found(stage: Stage) -> None:
    await stage.eventually(stage.answers_ping, "somebody was to answer the ping")


async def completes(stage: Stage) -> None:
    request = await stage.submit("complete")
    await stage.completed(request, "check complete")
    await _proposed_once(stage, request)


async def _proposed_once(stage: Stage, request: RequestId) -> None:
    """One readable proposal, stored before the event was acknowledged, which it was once and for good."""
    (first, *more) = await stage.until(lambda: stage.heard.proposed(request), "there was to be a proposal")
    if more:
        raise Wrong(f"it proposed {1 + len(more)} times for one round")
    try:
        codec.parse_proposal(first.data)
    except Malformed as error:
        raise Wrong(f"its proposal cannot be read: {error}") from None
    seq = (await stage.log.read(request))[0].seq
    ack = await stage.acked(seq)
    if ack.payload[:4] != "+ACK":
        raise Wrong(f"it said {ack.payload[:4]} of a round that it proposed for")
    if ack.at < first.at:
        raise Wrong("it acknowledged the event before it proposed: a crash in between loses the round")


async def waits_until_it_is_stored(stage: Stage) -> None:
    """Nothing stores what it proposes, until it has proposed twice."""
    async with stage.storing_no_proposal():
        request = await stage.submit("complete")
        await stage.until(
            lambda: len(stage.heard.proposed(request)) > 1,
            "it was to propose again what nobody acknowledged",
            stage.lease_s,
        )
        seq = (await stage.log.read(request))[0].seq
        if any(ack.payload[:4] == "+ACK" for ack in stage.heard.acks_of(seq)):
            raise Wrong("it acknowledged the event though its proposal was not stored")
    await stage.completed(request, "check complete", stage.lease_s)


async def reports_what_was_before(stage: Stage) -> None:
    """An earlier process of it has spent something, and failed."""
    await stage.process.kill()
    spent = Report(usage=Usage(tokens=850, model_calls=1), actions=("look_up",))
    request = await stage.submit("complete")
    work = (await stage.event(request, events.RequestOpened)).work
    assert work is not None
    failure = Failure(code="check", message="an earlier process failed")
    await stage.propose_as_agent(request, ReportFailure(turn=work.turn, round=0, error=failure, report=spent))
    await stage.event(request, events.TurnRetried)
    stage.process.start()
    await stage.completed(request, "check complete", READY_S)

    def moves() -> list[MoveProposed]:
        said = [codec.parse_proposal(each.data) for each in stage.heard.proposed(request)]
        return [each for each in said if isinstance(each, MoveProposed) and each.round >= 1]

    newest = (await stage.until(moves, "there was to be a move in a later round"))[-1]  # heard apart
    if newest.report.usage.tokens < spent.usage.tokens or "look_up" not in newest.report.actions:
        raise Wrong("its report leaves out what the rounds before reported (`work.reported`)")


async def lets_pulls_end_before_the_lease(stage: Stage) -> None:
    pulls = await stage.until(lambda: stage.heard.pulls, "it was to pull")
    if wrong := [pull for pull in pulls if not 0 < pull.expires_s < stage.lease_s]:
        raise Wrong(
            f"its pulls last {wrong[0].expires_s:g} s, and the lease {stage.lease_s:g} s: "
            "a frozen process gets back what it has just lost"
        )


async def takes_what_it_has_hands_for(stage: Stage) -> None:
    """Several requests wait. What it takes, it works on at once."""
    requests = [await stage.submit("wait", for_s=_BESIDE_S) for _ in range(_SEVERAL)]
    (first, *_) = await stage.until(
        lambda: [said for request in requests for said in stage.heard.proposed(request)],
        "there was to be a proposal",
        _BESIDE_S,
    )
    delivered = (await stage.inbox())["delivered"]["stream_seq"]
    taken = [request for request in requests if (await stage.log.read(request))[0].seq <= delivered]
    for request in requests:
        await stage.completed(request, "waited", _SEVERAL * (_BESIDE_S + stage.lease_s))
    late_s = max(stage.heard.proposed(request)[0].at for request in taken) - first.at
    if late_s > 2 * _BESIDE_S:
        raise Wrong(
            f"it took {len(taken)} events, and worked on the last of them {late_s:.1f} s after the first: "
            "what waits in its memory, nobody else can take"
        )


async def believes_its_consumer_alone(stage: Stage) -> None:
    """Somebody who knows where its pulls are answered sends it work."""
    request = await stage.submit("complete")
    await stage.completed(request, "check complete")
    opened = (await stage.log.read(request))[0].data
    smuggled = stage.client.new_id()
    await stage.smuggle(smuggled, opened.replace(request.encode(), smuggled.encode()))
    after = await stage.submit("complete")  # by then it has read what came before
    await stage.completed(after, "check complete", stage.lease_s)
    if stage.heard.proposed(smuggled):
        raise Wrong("it worked on what its consumer did not deliver: anybody could give it work")


def _round(do: str, answer: str, by: type[events.Event] | None = None, *, fact: Fact | None = None) -> Try:
    """Return the try of a request that does `do`: first an event `by` comes, then the answer."""

    async def run(stage: Stage) -> None:
        request = await stage.submit(do, *(() if fact is None else (fact,)))
        if by is not None:
            await stage.event(request, by)
        await stage.completed(request, answer, reply=REPLY)

    return run


async def _fails(stage: Stage, do: str, *, or_outline: bool = False) -> None:
    """Try a request that does `do`: the agent itself has to report that the turn failed.

    Args:
        or_outline: an outline of the move, which the guard refuses by its size, will do.
    """
    request = await stage.submit(do)

    async def ask() -> events.AnyEvent | None:
        for event in await stage.events(request):
            outlined = or_outline and isinstance(event, events.MoveRefused) and event.oversized
            if outlined or isinstance(event, events.TurnFailed):
                return event
        return None

    found = await stage.eventually(ask, "the agent was to say what went wrong")
    if isinstance(found, events.TurnFailed) and found.sender != stage.name:
        raise Wrong("the turn failed, but not by the agent's own word")
    await stage.end(request)


async def keeps_its_lease(stage: Stage) -> None:
    works_s = stage.lease_s + _WORKS_S
    request = await stage.submit("wait", for_s=works_s)
    seq = await stage.pulled(request)
    await stage.completed(request, "waited", works_s + stage.lease_s)
    ack = await stage.acked(seq)
    if ack.deliveries > 1 or any(each.deliveries > 1 for each in stage.heard.acks_of(seq)):
        raise Wrong("the lease ended while it worked: the event was delivered again")
    if not any(each.payload == "+WPI" for each in stage.heard.acks_of(seq)):
        raise Wrong("it sent no +WPI while it worked")


async def stops_when_cancelled(stage: Stage) -> None:
    request = await stage.submit("wait", for_s=60)
    seq = await stage.pulled(request)
    await stage.client.cancel(request, "a check")
    await stage.end(request)
    await stage.acked(seq)
    if stage.heard.proposed(request):
        raise Wrong("it proposed for a turn that was over")


async def looks_by_itself(stage: Stage) -> None:
    """The end of its turn lies where it can be read, and no notice of it came."""
    request = await stage.submit("wait", for_s=60)
    seq = await stage.pulled(request)
    await stage.end_untold(request)
    await stage.acked(seq)
    if stage.heard.proposed(request):
        raise Wrong("it proposed for a turn that was over, of which no notice came")
    await stage.client.cancel(request, "a check")
    await stage.end(request)


async def bears_a_freeze(stage: Stage) -> None:
    request = await stage.submit("wait", for_s=_WORKS_S)
    seq = await stage.pulled(request)
    await stage.operator.control(request, Freeze(id="freeze"))
    await stage.event(request, events.MoveDeferred)
    await stage.acked(seq)
    await stage.operator.control(request, Thaw(id="thaw"))
    await stage.completed(request, "waited")


async def gives_back_an_unknown_type(stage: Stage) -> None:
    await _gives_back(stage, "of an unknown type", v=VERSION, type="turn.blessed")


async def gives_back_another_form(stage: Stage) -> None:
    handoff = {
        "move": "submit",
        "from_agent": "app",
        "to_agent": stage.name,
        "summary": "check form",
        "facts": [{"key": "do", "value": "complete"}, {"key": "text", "value": "read"}],
    }
    work = {"turn": "form", "round": 0, "handoff": handoff, "path": [stage.name], "depth": 1}
    await _gives_back(stage, "of another form", v=VERSION + 1, type="request.opened", work=work)


async def _gives_back(stage: Stage, which: str, **event: object) -> None:
    """An event that only a newer process of the agent can read is left to that one."""
    request = stage.client.new_id()
    body = msgspec.json.encode({**event, "request": request, "to": stage.name})
    seq = await stage.inject(request, body)
    (first, *_) = await stage.until(
        lambda: stage.heard.acks_of(seq), f"an event {which} was to be given back"
    )
    if not first.payload.startswith("-NAK"):
        raise Wrong(f"it answered {first.payload[:4]} to an event {which}: a newer process may know it")
    if '"delay"' not in first.payload:
        raise Wrong(f"it gave an event {which} back without a delay: it comes again at once")
    if stage.heard.proposed(request):
        raise Wrong(f"it proposed something for an event {which}")


async def buries_what_nobody_can_read(stage: Stage) -> None:
    request = stage.client.new_id()
    seq = await stage.inject(request, b"{no json")
    (letter, *_) = await stage.until(
        lambda: [each for each in stage.heard.letters if _is_about(each.data, request)],
        "what cannot be read was to be in the dead letters",
    )
    ack = await stage.acked(seq)
    if ack.payload[:5] != "+TERM":
        raise Wrong(f"it said {ack.payload[:4]} of what cannot be read, and not +TERM")
    if ack.at < letter.at:
        raise Wrong("it gave up what it cannot read before it was kept")


def _is_about(body: bytes, request: str) -> bool:
    letter = codec.readable(body, DeadLetter)
    return letter is not None and request in letter.subject


async def goes_on_after_a_kill(stage: Stage) -> None:
    request = await stage.submit("wait", for_s=_WORKS_S)
    await stage.pulled(request)
    await stage.process.kill()
    if stage.heard.proposed(request):
        raise Wrong("it proposed before its work was done")
    stage.process.start()
    await stage.takes_work()
    await stage.completed(request, "waited", stage.lease_s + _WORKS_S)


async def bears_a_second_delivery(stage: Stage) -> None:
    """All that it ever got comes again, as if for the first time."""
    request = await stage.submit("complete")
    await stage.completed(request, "check complete")
    seq = (await stage.log.read(request))[0].seq
    await stage.acked(seq)
    said = len(stage.heard.acks_of(seq))
    before = await stage.events(request)
    await stage.forget_deliveries()
    await stage.until(
        lambda: [ack for ack in stage.heard.acks_of(seq)[said:] if ack.payload[:4] == "+ACK"],
        "what was delivered again after it was decided was to be acknowledged again",
        stage.lease_s * 2,
    )
    if await stage.events(request) != before:
        raise Wrong("a second delivery changed a request that was over")


async def outlives_the_server(stage: Stage) -> None:
    await stage.mesh.bus.server.kill()
    await stage.mesh.bus.server.start()
    request = await stage.submit("complete")
    await stage.completed(request, "check complete", stage.lease_s * 3)


async def ends_in_good_order(stage: Stage) -> None:
    request = await stage.submit("wait", for_s=_WORKS_S)
    await stage.pulled(request)
    await stage.ends_in_good_order()
    if await stage.answers_ping():
        raise Wrong("it answers pings after its end")
    stage.process.start()
    await stage.completed(request, "waited", stage.lease_s * 2)


CHECKS = (
    Check("answers pings", "Being found", found),
    Check("proposes once, then acknowledges", "The order of things", completes),
    Check("waits until its proposal is stored", "The order of things", waits_until_it_is_stored),
    Check("is told of a refusal", "A round", _round("refused", "known_agent", events.MoveRefused)),
    Check("goes on when the work comes back", "A round", _round("transfer", FOUND, events.HandoffAdmitted)),
    Check("asks, and is told the reply", "A round", _round("ask", REPLY, events.TurnSuspended)),
    Check("bears facts that are withheld", "A round", _round("complete", "check complete", fact=HIDDEN)),
    Check("says that a move is too large", "Propose", partial(_fails, do="large", or_outline=True)),
    Check("fails a turn whose code breaks", "A turn that broke", partial(_fails, do="break")),
    Check("reports what was before", "Propose", reports_what_was_before),
    Check("keeps its lease while it works", "The lease", keeps_its_lease),
    Check("stops when the turn is over", "What comes of it", stops_when_cancelled),
    Check("looks if the turn is over", "What comes of it", looks_by_itself),
    Check("bears a freeze", "What comes of it", bears_a_freeze),
    Check("gives an event of an unknown type back", "A round", gives_back_an_unknown_type),
    Check("gives an event of another form back", "A round", gives_back_another_form),
    Check("keeps what it cannot read", "A round", buries_what_nobody_can_read),
    Check("goes on after a kill", "The order of things", goes_on_after_a_kill),
    Check("takes what it has hands for", "Pulling", takes_what_it_has_hands_for),
    Check("lets pulls end before the lease", "Pulling", lets_pulls_end_before_the_lease),
    Check("believes its consumer alone", "Pulling", believes_its_consumer_alone),
    Check("bears a second delivery", "The lease", bears_a_second_delivery),
    Check("outlives the server", "Pulling", outlives_the_server),
    Check("ends in good order", "The lease", ends_in_good_order),
)
STARTS = Check("takes work", "Pulling", Stage.takes_work)
"""Comes before all others, which cannot be tried without."""


class CheckResult(NamedTuple):
    """What came of one check."""

    check: str
    ok: bool
    wrong: str
    """What the agent did, or did not do; empty if all was well."""
    section: str
    """The heading in docs/wire/agent.md that says what is right."""


async def check_agent(
    name: str,
    command: str,
    directory: Path,
    *,
    kill: str | None = None,
    checks: Iterable[Check] = CHECKS,
    patience_s: float = COMES_S,
    on_begin: Callable[[Check], object] = lambda check: None,
) -> AsyncGenerator[CheckResult]:
    """Start the agent `name` on a scratch mesh and try it; yield what was found, check by check.

    Args:
        command: a shell command that runs the agent. It finds NATS_URL, MESH_NAME and MESH_CREDENTIALS.
        directory: an empty one, for the scratch mesh.
        kill: a shell command that ends the agent as a crash would, where a signal to `command` does not.
        patience_s: how long anything may take that an agent does at once.
        on_begin: is given each check before it is tried.
    """
    on_begin(STARTS)
    try:
        async with staged(name, command, directory, kill=kill, patience_s=patience_s) as stage:
            yield _finding(STARTS)
            for check in checks:
                on_begin(check)
                yield await _tried(check, stage)
                if not stage.process.running:
                    stage.process.start()
                    await stage.takes_work()
    except Wrong as wrong:
        yield _finding(STARTS, str(wrong))


async def _tried(check: Check, stage: Stage) -> CheckResult:
    """Try one check; what is wrong quotes each `turn.failed` of the check's requests."""
    before = len(stage.submitted)
    try:
        await check.run(stage)
    except (Wrong, TimeoutError) as found:
        wrong = str(found) if isinstance(found, Wrong) else "it did not, in all the time there was"
    else:
        return _finding(check)
    with suppress(BusError):  # the server may be what is wrong
        if failed := await stage.failed_turns(stage.submitted[before:]):
            wrong = f"{wrong}; seen: {failed}"
    return _finding(check, wrong)


def _finding(check: Check, wrong: str = "") -> CheckResult:
    return CheckResult(check.name, not wrong, wrong, check.section)
