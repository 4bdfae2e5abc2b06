"""The checks of an agent, and what runs them all."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from mesh.conformance.harness import COMES_S, FOUND, READY_S, SECRET, Harness, Wrong, running_harness
from mesh.errors import BusError
from protocol.wire import codec, events
from protocol.wire.commands import Failure, Freeze, MoveProposed, Report, ReportFailure, Thaw, Usage
from protocol.wire.errors import Malformed
from protocol.wire.event import VERSION, Event
from protocol.wire.handoff import Fact
from protocol.wire.ids import RequestId
from protocol.wire.records import DeadLetter

_WORKS_S = 3
"""How long an agent works on a request that is killed or frozen meanwhile (s)."""
_SEVERAL = 4
"""Requests that wait at the same time."""
_BESIDE_S = 1.5
"""How long an agent works on each of them (s)."""
HIDDEN = Fact(key="hidden", value=1, labels=(SECRET,))
REPLY = "the reply"
"""The reply to every question."""


Try = Callable[[Harness], Awaitable[None]]
"""Raises Wrong."""


class Check(NamedTuple):
    name: str
    section: str
    """The heading in docs/wire/agent.md."""
    run: Try


async def found(harness: Harness) -> None:
    await harness.eventually(harness.answers_ping, "expected an answer to the ping")


async def completes(harness: Harness) -> None:
    request = await harness.submit("complete")
    await harness.completed(request, "check complete")
    await _proposed_once(harness, request)


async def _proposed_once(harness: Harness, request: RequestId) -> None:
    """Require one readable proposal, stored before the event was acknowledged, exactly once."""
    (first, *more) = await harness.until(lambda: harness.traffic.proposed(request), "expected a proposal")
    if more:
        raise Wrong(f"it proposed {1 + len(more)} times for one round")
    try:
        codec.parse_proposal(first.data)
    except Malformed as error:
        raise Wrong(f"its proposal cannot be read: {error}") from None
    seq = (await harness.log.read(request))[0].seq
    ack = await harness.acked(seq)
    if ack.payload[:4] != "+ACK":
        raise Wrong(f"it sent {ack.payload[:4]} for a round that it proposed for")
    if ack.at < first.at:
        raise Wrong("it acknowledged the event before it proposed: a crash in between loses the round")


async def waits_until_it_is_stored(harness: Harness) -> None:
    """Store nothing that it proposes until it has proposed twice."""
    async with harness.storing_no_proposal():
        request = await harness.submit("complete")
        await harness.until(
            lambda: len(harness.traffic.proposed(request)) > 1,
            "expected it to propose again what was not acknowledged",
            harness.lease_s,
        )
        seq = (await harness.log.read(request))[0].seq
        if any(ack.payload[:4] == "+ACK" for ack in harness.traffic.acks_of(seq)):
            raise Wrong("it acknowledged the event though its proposal was not stored")
    await harness.completed(request, "check complete", harness.lease_s)


async def reports_earlier_rounds(harness: Harness) -> None:
    """Let an earlier process of it have spent something, and failed."""
    await harness.process.kill()
    spent = Report(usage=Usage(tokens=850, model_calls=1), actions=("look_up",))
    request = await harness.submit("complete")
    work = (await harness.event(request, events.RequestOpened)).work
    assert work is not None
    failure = Failure(code="check", message="an earlier process failed")
    await harness.propose_as_agent(
        request, ReportFailure(turn=work.turn, round=0, error=failure, report=spent)
    )
    await harness.event(request, events.TurnRetried)
    harness.process.start()
    await harness.completed(request, "check complete", READY_S)

    def moves() -> list[MoveProposed]:
        proposals = [codec.parse_proposal(each.data) for each in harness.traffic.proposed(request)]
        return [each for each in proposals if isinstance(each, MoveProposed) and each.round >= 1]

    newest = (await harness.until(moves, "expected a move in a later round"))[-1]  # no common order
    if newest.report.usage.tokens < spent.usage.tokens or "look_up" not in newest.report.actions:
        raise Wrong("its report leaves out what the rounds before reported (`work.reported`)")


async def lets_pulls_end_before_the_lease(harness: Harness) -> None:
    pulls = await harness.until(lambda: harness.traffic.pulls, "expected it to pull")
    if wrong := [pull for pull in pulls if not 0 < pull.expires_s < harness.lease_s]:
        raise Wrong(
            f"its pulls last {wrong[0].expires_s:g} s, and the lease {harness.lease_s:g} s: "
            "a frozen process gets back what it just lost"
        )


async def takes_only_what_it_can_work_on(harness: Harness) -> None:
    """Let several requests wait. It has to work at once on all that it takes."""
    requests = [await harness.submit("wait", for_s=_BESIDE_S) for _ in range(_SEVERAL)]
    (first, *_) = await harness.until(
        lambda: [each for request in requests for each in harness.traffic.proposed(request)],
        "expected a proposal",
        _BESIDE_S,
    )
    delivered = (await harness.inbox())["delivered"]["stream_seq"]
    taken = [request for request in requests if (await harness.log.read(request))[0].seq <= delivered]
    for request in requests:
        await harness.completed(request, "waited", _SEVERAL * (_BESIDE_S + harness.lease_s))
    late_s = max(harness.traffic.proposed(request)[0].at for request in taken) - first.at
    if late_s > 2 * _BESIDE_S:
        raise Wrong(
            f"it took {len(taken)} events, and worked on the last of them {late_s:.1f} s after the first: "
            "what waits in its memory cannot go to another process"
        )


async def trusts_only_its_consumer(harness: Harness) -> None:
    """Send it work, knowing where its pulls are answered."""
    request = await harness.submit("complete")
    await harness.completed(request, "check complete")
    opened = (await harness.log.read(request))[0].data
    smuggled = harness.client.new_id()
    await harness.smuggle(smuggled, opened.replace(request.encode(), smuggled.encode()))
    after = await harness.submit("complete")  # by then it has read the earlier message
    await harness.completed(after, "check complete", harness.lease_s)
    if harness.traffic.proposed(smuggled):
        raise Wrong("it worked on what its consumer did not deliver: any member could give it work")


def _round(do: str, answer: str, by: type[Event] | None = None, *, fact: Fact | None = None) -> Try:
    """Return the try of a request that does `do`: an event `by` comes first, then the answer."""

    async def run(harness: Harness) -> None:
        request = await harness.submit(do, *(() if fact is None else (fact,)))
        if by is not None:
            await harness.event(request, by)
        await harness.completed(request, answer, reply=REPLY)

    return run


async def _fails(harness: Harness, do: str, *, or_summary: bool = False) -> None:
    """Try a request that does `do`: the agent itself has to report that the turn failed.

    Args:
        or_summary: True to accept a summarized move, which the guard refuses for its size.
    """
    request = await harness.submit(do)

    async def ask() -> events.AnyEvent | None:
        for event in await harness.events(request):
            summarized = or_summary and isinstance(event, events.MoveRefused) and event.oversized
            if summarized or isinstance(event, events.TurnFailed):
                return event
        return None

    found = await harness.eventually(ask, "expected the agent to report what went wrong")
    if isinstance(found, events.TurnFailed) and found.sender != harness.name:
        raise Wrong("the turn failed, but the agent did not report it")
    await harness.end(request)


async def keeps_its_lease(harness: Harness) -> None:
    works_s = harness.lease_s + _WORKS_S
    request = await harness.submit("wait", for_s=works_s)
    seq = await harness.pulled(request)
    await harness.completed(request, "waited", works_s + harness.lease_s)
    ack = await harness.acked(seq)
    if ack.deliveries > 1 or any(each.deliveries > 1 for each in harness.traffic.acks_of(seq)):
        raise Wrong("the lease ended while it worked: the event was delivered again")
    if not any(each.payload == "+WPI" for each in harness.traffic.acks_of(seq)):
        raise Wrong("it sent no +WPI while it worked")


async def stops_when_cancelled(harness: Harness) -> None:
    request = await harness.submit("wait", for_s=60)
    seq = await harness.pulled(request)
    await harness.client.cancel(request, "a check")
    await harness.end(request)
    await harness.acked(seq)
    if harness.traffic.proposed(request):
        raise Wrong("it proposed for a turn that had ended")


async def checks_by_itself(harness: Harness) -> None:
    """End its turn where it can be read, without a notice."""
    request = await harness.submit("wait", for_s=60)
    seq = await harness.pulled(request)
    await harness.end_without_notice(request)
    await harness.acked(seq)
    if harness.traffic.proposed(request):
        raise Wrong("it proposed for a turn that had ended without a notice")
    await harness.client.cancel(request, "a check")
    await harness.end(request)


async def survives_a_freeze(harness: Harness) -> None:
    request = await harness.submit("wait", for_s=_WORKS_S)
    seq = await harness.pulled(request)
    await harness.operator.control(request, Freeze(id="freeze"))
    await harness.event(request, events.MoveDeferred)
    await harness.acked(seq)
    await harness.operator.control(request, Thaw(id="thaw"))
    await harness.completed(request, "waited")


async def gives_back_an_unknown_type(harness: Harness) -> None:
    await _gives_back(harness, "of an unknown type", v=VERSION, type="turn.blessed")


async def gives_back_another_form(harness: Harness) -> None:
    handoff = {
        "move": "submit",
        "from_agent": "app",
        "to_agent": harness.name,
        "summary": "check form",
        "facts": [{"key": "do", "value": "complete"}, {"key": "text", "value": "read"}],
    }
    work = {"turn": "form", "round": 0, "handoff": handoff, "path": [harness.name], "depth": 1}
    await _gives_back(harness, "of another form", v=VERSION + 1, type="request.opened", work=work)


async def _gives_back(harness: Harness, which: str, **event: object) -> None:
    """Send an event that only a newer process of the agent can read: the agent must leave it."""
    request = harness.client.new_id()
    body = msgspec.json.encode({**event, "request": request, "to": harness.name})
    seq = await harness.inject(request, body)
    (first, *_) = await harness.until(
        lambda: harness.traffic.acks_of(seq), f"expected an event {which} to be given back"
    )
    if not first.payload.startswith("-NAK"):
        raise Wrong(f"it answered {first.payload[:4]} to an event {which}: a newer process may know it")
    if '"delay"' not in first.payload:
        raise Wrong(f"it gave an event {which} back without a delay: it comes again at once")
    if harness.traffic.proposed(request):
        raise Wrong(f"it proposed something for an event {which}")


async def dead_letters_the_unreadable(harness: Harness) -> None:
    request = harness.client.new_id()
    seq = await harness.inject(request, b"{no json")
    (letter, *_) = await harness.until(
        lambda: [each for each in harness.traffic.letters if _is_about(each.data, request)],
        "expected a dead letter for what cannot be read",
    )
    ack = await harness.acked(seq)
    if ack.payload[:5] != "+TERM":
        raise Wrong(f"it sent {ack.payload[:4]} for what cannot be read, instead of +TERM")
    if ack.at < letter.at:
        raise Wrong("it gave up what it cannot read before storing the dead letter")


def _is_about(body: bytes, request: str) -> bool:
    letter = codec.readable(body, DeadLetter)
    return letter is not None and request in letter.subject


async def goes_on_after_a_kill(harness: Harness) -> None:
    request = await harness.submit("wait", for_s=_WORKS_S)
    await harness.pulled(request)
    await harness.process.kill()
    if harness.traffic.proposed(request):
        raise Wrong("it proposed before its work was done")
    harness.process.start()
    await harness.takes_work()
    await harness.completed(request, "waited", harness.lease_s + _WORKS_S)


async def survives_a_second_delivery(harness: Harness) -> None:
    """Deliver all that it ever got again, as if for the first time."""
    request = await harness.submit("complete")
    await harness.completed(request, "check complete")
    seq = (await harness.log.read(request))[0].seq
    await harness.acked(seq)
    acknowledged = len(harness.traffic.acks_of(seq))
    before = await harness.events(request)
    await harness.forget_deliveries()
    await harness.until(
        lambda: [ack for ack in harness.traffic.acks_of(seq)[acknowledged:] if ack.payload[:4] == "+ACK"],
        "expected another acknowledgement of what was delivered again after its decision",
        harness.lease_s * 2,
    )
    if await harness.events(request) != before:
        raise Wrong("a second delivery changed a request that had ended")


async def survives_a_server_restart(harness: Harness) -> None:
    await harness.mesh.bus.server.kill()
    await harness.mesh.bus.server.start()
    request = await harness.submit("complete")
    await harness.completed(request, "check complete", harness.lease_s * 3)


async def ends_in_good_order(harness: Harness) -> None:
    request = await harness.submit("wait", for_s=_WORKS_S)
    await harness.pulled(request)
    await harness.ends_in_good_order()
    if await harness.answers_ping():
        raise Wrong("it answers pings after it ended")
    harness.process.start()
    await harness.completed(request, "waited", harness.lease_s * 2)


CHECKS = (
    Check("answers pings", "Being found", found),
    Check("proposes once, then acknowledges", "The order of things", completes),
    Check("waits until its proposal is stored", "The order of things", waits_until_it_is_stored),
    Check("learns of a refusal", "A round", _round("refused", "known_agent", events.MoveRefused)),
    Check("goes on when the work comes back", "A round", _round("transfer", FOUND, events.HandoffAdmitted)),
    Check("asks, and gets the reply", "A round", _round("ask", REPLY, events.TurnSuspended)),
    Check("works with withheld facts", "A round", _round("complete", "check complete", fact=HIDDEN)),
    Check("reports a move that is too large", "Propose", partial(_fails, do="large", or_summary=True)),
    Check("fails a turn whose code breaks", "A turn that broke", partial(_fails, do="break")),
    Check("reports earlier rounds", "Propose", reports_earlier_rounds),
    Check("keeps its lease while it works", "The lease", keeps_its_lease),
    Check("stops when the turn is over", "What comes of it", stops_when_cancelled),
    Check("checks if the turn is over", "What comes of it", checks_by_itself),
    Check("survives a freeze", "What comes of it", survives_a_freeze),
    Check("gives an event of an unknown type back", "A round", gives_back_an_unknown_type),
    Check("gives an event of another form back", "A round", gives_back_another_form),
    Check("dead-letters what it cannot read", "A round", dead_letters_the_unreadable),
    Check("goes on after a kill", "The order of things", goes_on_after_a_kill),
    Check("takes only what it can work on", "Pulling", takes_only_what_it_can_work_on),
    Check("lets pulls end before the lease", "Pulling", lets_pulls_end_before_the_lease),
    Check("trusts only its consumer", "Pulling", trusts_only_its_consumer),
    Check("survives a second delivery", "The lease", survives_a_second_delivery),
    Check("survives a server restart", "Pulling", survives_a_server_restart),
    Check("ends in good order", "The lease", ends_in_good_order),
)
STARTS = Check("takes work", "Pulling", Harness.takes_work)
"""Comes before all other checks, which need it."""


class CheckResult(NamedTuple):
    """The outcome of one check."""

    check: str
    ok: bool
    wrong: str
    """What the agent did wrong, or did not do; empty if it passed."""
    section: str
    """The heading in docs/wire/agent.md that defines what is right."""


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
    """Start the agent `name` on a scratch mesh and try it; yield the result of each check.

    Args:
        command: a shell command that runs the agent. It finds NATS_URL, MESH_NAME and MESH_CREDENTIALS.
        directory: an empty directory, for the scratch mesh.
        kill: a shell command that ends the agent as a crash would, if a signal to `command` does not.
        patience_s: how long anything may take that an agent should do at once.
        on_begin: called with each check before it is tried.
    """
    on_begin(STARTS)
    try:
        async with running_harness(name, command, directory, kill=kill, patience_s=patience_s) as harness:
            yield _finding(STARTS)
            for check in checks:
                on_begin(check)
                yield await _tried(check, harness)
                if not harness.process.running:
                    harness.process.start()
                    await harness.takes_work()
    except Wrong as wrong:
        yield _finding(STARTS, str(wrong))


async def _tried(check: Check, harness: Harness) -> CheckResult:
    """Try one check; on failure quote each `turn.failed` of the check's requests."""
    before = len(harness.submitted)
    try:
        await check.run(harness)
    except (Wrong, TimeoutError) as found:
        wrong = str(found) if isinstance(found, Wrong) else "it did not within the time limit"
    else:
        return _finding(check)
    with suppress(BusError):  # the server itself may be at fault
        if failed := await harness.failed_turns(harness.submitted[before:]):
            wrong = f"{wrong}; seen: {failed}"
    return _finding(check, wrong)


def _finding(check: Check, wrong: str = "") -> CheckResult:
    return CheckResult(check.name, not wrong, wrong, check.section)
