"""Checks on what the log says: nothing lost, one successor, exact replay, and that what is due is done.

Each tries to contradict one promise and yields what it found. None of them believes that another held.
"""

from collections import Counter
from collections.abc import Iterator

import msgspec

from mesh.replay.rejudge import rejudge
from protocol.domain import hash_chain
from protocol.domain.envelope import World
from protocol.domain.ledger import Ledger
from protocol.domain.timers import due
from protocol.domain.waits import Probed
from protocol.wire import events
from protocol.wire.commands import Command, FactsPost, OfferClaimed
from protocol.wire.event_parts import Grounds
from protocol.wire.events import AnyEvent, Ended, type_of
from protocol.wire.ids import HUMAN
from protocol.wire.records import DeadLetter
from tests.drill.findings import Breach
from tests.drill.reading import Reading, Story
from tests.drill.verdicts import is_verdict

SLACK_S = 3.0
"""How late a consequence may be before it counts as forgotten: what a guard's lease, a restart and a busy
machine take together, and more."""


def nothing_lost(reading: Reading) -> Iterator[Breach]:
    """Each acknowledged request is in the log and ended, or it waits for a person or its client.

    Where the drill has people of its own, it gives up on a request that they did not bring to its end: what
    they said, or that they were asked, was lost on the way.
    """
    for submitted in reading.evidence.submitted:
        if not submitted.acknowledged:
            continue
        story = reading.stories.get(submitted.request)
        if story is None or not story.events:
            yield Breach(
                promise="nothing_lost",
                request=submitted.request,
                detail="its submit was acknowledged, and no event of it is in the log",
            )
            continue
        stuck = _stuck(story, silent=submitted.request in reading.evidence.silent)
        if stuck:
            yield Breach(promise="nothing_lost", request=submitted.request, detail=stuck)


def _stuck(story: Story, *, silent: bool) -> str:
    """Return why a request counts as lost; empty if it ended or waits for somebody, rightly."""
    if not story.said or not isinstance(story.said[0], events.RequestOpened | events.RequestRefused):
        return "its log does not begin with the verdict on its submit"
    ledger = story.ledger
    if ledger is None:
        return "" if _ends(story) else f"it did not end, and {story.trouble}"
    if not ledger.is_open or (not silent and (waits_for_people(ledger) or asks_client(ledger))):
        return ""
    holders = ", ".join(f"{turn.agent} ({turn.state}, round {turn.round})" for turn in ledger.open.values())
    return f"it did not end, and only this is open: {holders or 'nothing'}"


def waits_for_people(ledger: Ledger) -> bool:
    """Say whether an open request waits for a person: an escalation, a question, a doubt, a thaw."""
    return ledger.is_open and (
        ledger.frozen_at is not None
        or any(
            turn.agent == HUMAN
            or turn.state == "doubted"
            or (turn.state == "suspended" and turn.asked == HUMAN)
            for turn in ledger.open.values()
        )
    )


def asks_client(ledger: Ledger) -> bool:
    """Say whether an open request waits for its client's reply."""
    return any(turn.state == "suspended" and turn.asked != HUMAN for turn in ledger.open.values())


def _ends(story: Story) -> list[AnyEvent]:
    return [event for event in story.events if isinstance(event, Ended)]


def one_end(reading: Reading) -> Iterator[Breach]:
    """A request ends once, and nothing follows."""
    for request, story in reading.stories.items():
        ends = _ends(story)
        if len(ends) > 1:
            said = ", ".join(f"{type_of(event)} at {event.n}" for event in ends)
            yield Breach(promise="one_end", request=request, detail=f"it ended {len(ends)} times: {said}")
        elif ends and ends[0] is not story.events[-1]:
            after = len(story.events) - 1 - story.events.index(ends[0])
            yield Breach(promise="one_end", request=request, detail=f"{after} events follow its end")


def only_what_was_sent(reading: Reading) -> Iterator[Breach]:
    """The log holds no request that nobody sent."""
    sent = {submitted.request for submitted in reading.evidence.submitted}
    for request, story in reading.stories.items():
        if request not in sent and not _is_rerun(story):
            yield Breach(promise="only_what_was_sent", request=request, detail="the drill did not send it")


def _is_rerun(story: Story) -> bool:
    return bool(story.said) and getattr(story.said[0], "rerun_of", None) is not None


def orders_obeyed(reading: Reading) -> Iterator[Breach]:
    """What the drill's people said of a request that never ended is in its log, or was put aside loudly.

    Of a request that ended it may have come too late, which leaves no event.
    """
    aside = {letter.request for letter in letters(reading) if letter is not None}
    for order in reading.evidence.orders:
        story = reading.stories.get(order.request)
        if story is None or story.ledger is None or not story.ledger.is_open or order.request in aside:
            continue
        if not any(event.control == order.id for event in story.events):
            detail = f"{order.id} was acknowledged at {order.seq} of CTL, and no event came of it"
            yield Breach(promise="orders_obeyed", request=order.request, detail=detail)


def in_time_counts(reading: Reading) -> Iterator[Breach]:
    """A reply that was stored before its question expired is the answer, whether or not a guard ran then."""
    stored = {(order.request, order.id): order.at for order in reading.evidence.orders}
    for request, story in reading.stories.items():
        asked: dict[str, events.TurnSuspended] = {}
        for event in story.events:
            if isinstance(event, events.TurnSuspended):
                asked[event.turn] = event
            elif isinstance(event, events.TurnResumed) and event.work.past[-1].how == "expired":
                question = asked[event.turn]
                at = stored.get((request, f"reply-{question.id}"), question.expires_at)
                if at < question.expires_at:
                    early_s = (question.expires_at - at) / 1e6
                    detail = f"event {event.n} calls expired what was answered {early_s:.1f} s before"
                    yield Breach(promise="in_time_counts", request=request, detail=detail)


def people_can_act(reading: Reading) -> Iterator[Breach]:
    """The drill's people could do what they were asked for: say what became of an effect, for instance."""
    for undone in reading.evidence.undone:
        yield Breach(promise="people_can_act", request=undone.request, detail=undone.why)


def comes_to_rest(reading: Reading) -> Iterator[Breach]:
    """The drill was not broken off: every service takes work, and every fault could be done."""
    for line in reading.evidence.unfinished:
        yield Breach(promise="comes_to_rest", request="", detail=line)


def ends_as_told(reading: Reading) -> Iterator[Breach]:
    """A request whose end is known beforehand ends that way, whatever was done to the fleet."""
    for submitted in reading.evidence.submitted:
        story = reading.stories.get(submitted.request)
        if not submitted.expected or story is None or story.ledger is None or story.ledger.is_open:
            continue
        if story.ledger.status not in submitted.expected:
            detail = f"{submitted.story}: {story.ledger.status}, and not {' or '.join(submitted.expected)}"
            why = getattr(story.ledger.ended, "code", "") or _rule(story.ledger.ended)
            detail += f" ({why})" if why else ""
            yield Breach(promise="ends_as_told", request=submitted.request, detail=detail)


def _rule(ended: AnyEvent | None) -> str:
    return str(ended.refusal.rule) if isinstance(ended, events.RequestRefused) else ""


def services_stand(reading: Reading) -> Iterator[Breach]:
    """No service ended that nobody had ended."""
    for line in reading.evidence.unasked:
        yield Breach(promise="services_stand", request="", detail=line.partition("\n")[0])


def sound_chain(reading: Reading) -> Iterator[Breach]:
    """Numbers are dense from 0, and each event names the one before it by its digest."""
    for request, story in reading.stories.items():
        found = hash_chain.breaks(story.bodies)
        if found:
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            detail = f"event {found[0].n} {found[0].what}{more}"
            yield Breach(promise="sound_chain", request=request, detail=detail)


def one_successor(reading: Reading) -> Iterator[Breach]:
    """A turn is ended at most once: by one spending move, or by an escalation or resolution."""
    for request, story in reading.stories.items():
        ended = Counter(_turn(event) for event in story.events if ends_turn(event))
        for turn, times in ended.items():
            if times > 1:
                detail = f"turn {turn} was ended by {times} events: {_where(story, turn)}"
                yield Breach(promise="one_successor", request=request, detail=detail)


def ends_turn(event: AnyEvent) -> bool:
    """Say whether an event ends the turn that it names."""
    return isinstance(
        event,
        events.HandoffAdmitted
        | events.EscalationRaised
        | events.EscalationResolved
        | events.RequestCompleted
        | events.RequestFailed
        | events.TaskDelivered
        | events.TaskFailed
        | events.TaskCancelled,
    )


def _where(story: Story, turn: str) -> str:
    return ", ".join(
        f"{type_of(event)} at {event.n}"
        for event in story.events
        if ends_turn(event) and _turn(event) == turn
    )


def _turn(event: AnyEvent) -> str:
    return event.turn


def one_decision(reading: Reading) -> Iterator[Breach]:
    """A round of a turn is decided at most once, and put off at most once; and so each agent's claim is."""
    for request, story in reading.stories.items():
        decided = Counter(_asked(event) for event in story.events if _decides_round(event))
        deferred = Counter(_asked(event) for event in story.events if isinstance(event, events.MoveDeferred))
        for what, counted in (("decided", decided), ("deferred", deferred)):
            for (turn, round_, claimant), times in counted.items():
                if times > 1:
                    whose = f" for {claimant}" if claimant else ""
                    detail = f"round {round_} of turn {turn} was {what} {times} times{whose}"
                    yield Breach(promise="one_decision", request=request, detail=detail)


def _asked(event: AnyEvent) -> tuple[str, int, str]:
    """Return what an event decides or puts off: a turn and round; of a claim, the offer and who claims it.

    A post is put off beside the move of its round; it is known by its number.
    """
    claimant = ""
    if isinstance(event, events.MoveDeferred) and isinstance(event.proposal, OfferClaimed):
        claimant = event.sender
    elif isinstance(event, events.MoveDeferred) and isinstance(event.proposal, FactsPost):
        claimant = f"post {event.proposal.post}"
    elif isinstance(event, events.MoveRefused) and event.move.name == "claim":
        claimant = "" if event.grounds.sender is None else event.grounds.sender.name
    return _turn(event), event.round, claimant


def _decides_round(event: AnyEvent) -> bool:
    """Say whether an event is the verdict on a round, or its end by time; consequences are neither."""
    if isinstance(event, events.MoveDeferred):
        return False
    return is_verdict(event) or isinstance(event, events.TurnFailed | events.EffectDoubted)


_SHARING = events.FactsWithheld | events.MoveDeferred | events.TaskOpened | events.TaskOffered


def one_event_a_cause(reading: Reading) -> Iterator[Breach]:
    """What asked for an event got one, whoever heard it and how often; and no two events have one id.

    Before it there may be withholdings of the same cause, and for a frozen request its being put off. What
    opens the tasks of a plan has one cause; its ids differ by their place.
    """
    for request, story in reading.stories.items():
        causes = Counter(event.cause for event in story.events if not isinstance(event, _SHARING))
        ids = Counter(event.id for event in story.events)
        for what, counted in (("cause", causes), ("id", ids)):
            for name, times in counted.items():
                if times > 1:
                    detail = f"{times} events have the {what} {name}"
                    yield Breach(promise="one_event_a_cause", request=request, detail=detail)


def exact_replay(reading: Reading) -> Iterator[Breach]:
    """The live code derives every event anew, to the letter, from those before it."""
    for request, story in reading.stories.items():
        try:
            judged = rejudge(story.bodies)
        except Exception as error:  # a log that no guard could have written may break it anywhere
            detail = f"it cannot be judged again: {type(error).__name__}"
            yield Breach(promise="exact_replay", request=request, detail=detail)
            continue
        if judged.unreadable:
            yield Breach(promise="exact_replay", request=request, detail=judged.unreadable)
        if judged.differences:
            first = judged.differences[0]
            fields = ", ".join(dict.fromkeys((*first.recorded, *first.rederived)))
            more = f", and {len(judged.differences) - 1} more" if len(judged.differences) > 1 else ""
            detail = f"event {first.n} ({first.type}) comes out otherwise: {fields}{more}"
            yield Breach(promise="exact_replay", request=request, detail=detail)


def consequences_follow(reading: Reading) -> Iterator[Breach]:
    """Nothing was due long before the drill ended and never happened.

    Looked at `SLACK_S` and two leases before the log was read, and only if the last fault was over by
    then: until guards and server run again, whatever falls due has to wait. An agent counts as served since
    that fault, and so does somebody who may claim an offer. What hangs on it is looked for again a period
    after a look in vain, so it gets one more.
    """
    then = reading.evidence.ended_at - int((SLACK_S + 2 * reading.evidence.lease_s) * 1e6)
    if any(fault.until > then for fault in reading.evidence.faults):
        return
    since = max((fault.until for fault in reading.evidence.faults), default=None)
    served_ones = {placed.where.agent for placed in reading.steps}
    for request, story in reading.stories.items():
        ledger = story.ledger
        if ledger is None or not ledger.is_open:
            continue
        period = int(ledger.policy.turn_timeout_s * 1e6)
        there = Grounds(human=True, served=True, served_since=since)
        offers = {task.turn: there for task in ledger.live.values() if task.state == "offered"}
        looks: list[tuple[int, Grounds, Probed | None]] = [(then, Grounds(human=True), None)]
        looks.append((then - int(ledger.policy.claim_within_s * 1e6), Grounds(human=True), offers))
        if all(turn.agent in served_ones for turn in ledger.open.values()):
            looks.append((then - period, there, None))
        for at, grounds, seen in looks:
            if ledger.head is not None and at < ledger.head.at:
                continue
            missing = due(ledger, World(now=at, salt="0" * 32, grounds=grounds), probed=seen)
            if missing is not None:
                what = "the verdict on a deferred move" if isinstance(missing, Command) else type_of(missing)
                detail = f"{what} was due {SLACK_S:g} s and more before the end, and is not there"
                yield Breach(promise="consequences_follow", request=request, detail=detail)
                break


EXCUSED = {
    "frozen": "an order to freeze what is frozen: two people, or one who asked again under a new id",
    "not_frozen": "an order to thaw what runs: the same",
}
"""Dead letters that a drill may rightly leave, by code, and why."""


def no_dead_letters(reading: Reading) -> Iterator[Breach]:
    """Nobody put a message aside: everything that the drill's own parties say can be read and acted on.

    `EXCUSED` are not breaches. Nor is `unknown_request` about a control message: it may have overtaken its
    submit by more than the time that guards wait for that, when all of them were down; whoever sent it was
    told. About a proposal it is a breach: a turn of that request had been opened.
    """
    for letter in letters(reading):
        if letter is None:
            yield Breach(promise="no_dead_letters", request="", detail="a dead letter cannot be read")
        elif letter.code not in EXCUSED and not _overtook(letter):
            times = "1 delivery" if letter.delivered == 1 else f"{letter.delivered} deliveries"
            detail = f"{letter.code}, by {letter.by} after {times}"
            yield Breach(promise="no_dead_letters", request=letter.request, detail=detail)


def _overtook(letter: DeadLetter) -> bool:
    return letter.code == "unknown_request" and letter.subject.startswith("mesh.ctl.")


def letters(reading: Reading) -> Iterator[DeadLetter | None]:
    """Yield every dead letter; None for one that cannot be read."""
    for body in reading.evidence.dead:
        try:
            yield msgspec.json.decode(body, type=DeadLetter)
        except (msgspec.MsgspecError, UnicodeError):
            yield None
