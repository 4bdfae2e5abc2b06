"""Commands for many requests at once: what is shown and asked, what is done, and how they go on."""

import itertools
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from mesh.cli.exits import Exit
from mesh.ops import batch, bulk
from mesh.ops.where import parse
from protocol.wire import events
from protocol.wire.commands import Cancel
from protocol.wire.events import type_of
from protocol.wire.ids import HUMAN
from protocol.wire.moves import Ask, Complete, Fail
from tests.certain import is_
from tests.guard.stage import FLEET, Stage
from tests.system.office import Office

_words = itertools.count(1)


class Desk(Office):
    """An office whose requests, in one test, have a word that no other request has."""

    def __init__(self, stage: Stage, path: Path) -> None:
        super().__init__(stage, path)
        self.word = f"{secrets.token_hex(4)}x{next(_words)}"
        self.every = ("--where", f"text={self.word}")
        self.wanted = parse(f"text={self.word}")

    async def several(self, count: int) -> list[str]:
        return [(await self.begun(self.word))[0] for _ in range(count)]


@pytest.fixture
def desk(stage: Stage, tmp_path: Path) -> Desk:
    return Desk(stage, tmp_path)


async def controls(stage: Stage, requests: Sequence[str]) -> set[str]:
    """Return the ids of the control messages that these requests obeyed."""
    return {event.control for request in requests for event in await stage.log(request) if event.control}


async def test_all_that_a_filter_finds_are_cancelled_under_one_batch(desk: Desk, stage: Stage) -> None:
    over, work = await desk.begun(desk.word)
    await (await stage.actor("a")).propose(over, work, Complete(answer="done"))
    await stage.reaches(over, "request.completed")
    found = await desk.several(5)
    done = await desk.mesh("request", "cancel", *desk.every, "--yes", "--reason", "circle", "--by", "kim")
    assert done.status == Exit.DONE, done
    named, _, told = done.out.strip().partition(": ")
    assert (batch.checked_batch(named), told) == (named, "5 of 5 cancelled")
    assert "5 requests to cancel" in done.err
    assert done.err.count(f", with a: {desk.word}") == bulk.SHOWN
    assert "and 2 more" in done.err
    for request in found:
        event = is_(await desk.last(request), events.RequestCancelled)
        assert (event.sender, event.by, event.reason, event.control) == ("op", "kim", "circle", named)
    assert type_of(await desk.last(over)) == "request.completed"

    listed = (await desk.mesh("request", "ls", "--where", f"batch={named}", "--json")).json
    assert sorted(each["request"] for each in listed) == sorted(found)
    again = await desk.mesh("request", "cancel", *desk.every, "--yes")
    assert (again.status, again.out) == (Exit.DONE, "")
    assert "there is no request to cancel" in again.err


async def test_nothing_is_sent_without_a_yes(desk: Desk, stage: Stage) -> None:
    found = await desk.several(2)
    unasked = await desk.mesh("request", "cancel", *desk.every)
    assert unasked.status == Exit.USAGE, unasked
    assert "--yes" in unasked.err
    assert "2 requests to cancel" in unasked.err
    no = await desk.typed("n\n", "request", "cancel", *desk.every)
    assert no.status == Exit.FAILED, no
    assert "nothing was sent" in no.err
    assert await controls(stage, found) == set()
    yes = await desk.typed("y\n", "request", "cancel", *desk.every, "--limit", 1)
    assert yes.status == Exit.DONE, yes
    assert [type_of(await desk.last(each)) for each in found] == ["request.opened", "request.cancelled"]


async def test_a_command_takes_one_id_or_a_filter(desk: Desk) -> None:
    request, _ = await desk.begun()
    for options in (
        ("request", "cancel"),
        ("request", "cancel", request, *desk.every, "--yes"),
        ("request", "freeze", request, "--limit", 2),
        ("request", "thaw", request, "--batch", batch.new_batch()),
        ("request", "cancel", *desk.every, "--batch", "mine", "--yes"),
        ("human", "resolve", *desk.every, "--event", 1, "--yes"),
        ("doubt", "settle", *desk.every, "--done", "--result", "7", "--yes"),
        ("doubt", "settle", request, "--done", "--action", "pay"),
        ("dead", "resend", 1, "--code", "x"),
    ):
        refused = await desk.mesh(*options)
        assert refused.status == Exit.USAGE, (options, refused)
    assert type_of(await desk.last(request)) == "request.opened"


async def test_what_is_frozen_is_passed_over_and_thawed_again(desk: Desk, stage: Stage) -> None:
    first, *others = await desk.several(3)
    assert (await desk.mesh("request", "freeze", first)).status == Exit.DONE
    done = await desk.mesh("request", "freeze", *desk.every, "--yes", "--json")
    assert done.json["passed_over"] == {"frozen already": 1}
    assert {each["request"]: each["outcome"] for each in done.json["came"]} == dict.fromkeys(others, "done")
    thawed = await desk.mesh("request", "thaw", "--where", f"batch={done.json['batch']}", "--yes", "--json")
    assert sorted(each["request"] for each in thawed.json["came"]) == sorted(others)
    assert type_of(await desk.last(first)) == "request.frozen"


async def test_a_batch_that_is_said_again_does_nothing_twice(desk: Desk, stage: Stage) -> None:
    found = await desk.several(4)
    bus, deed = await stage.bus("op"), bulk.freezing(by="kim")
    whole = await bulk.choose(bus, deed, desk.wanted)
    half = batch.Batch(bus, whole.orders[:2])
    await half.run()
    assert [each.outcome for each in half.came] == ["done", "done"]
    assert (await desk.mesh("request", "thaw", half.came[0].request)).status == Exit.DONE

    rest = await bulk.choose(bus, deed, desk.wanted, batch=whole.batch)
    assert (rest.requests, rest.passed_over) == (3, {"frozen already": 1})
    again = batch.Batch(bus, whole.orders)
    await again.run()
    assert [each.outcome for each in again.came] == ["before", "before", "done", "done"]
    types = [event for each in found for event in await stage.types(each)]
    assert types.count("request.frozen") == 4


async def test_what_a_guard_refuses_or_finds_over_is_told(desk: Desk, stage: Stage) -> None:
    first, second = await desk.several(2)
    bus = await stage.bus("op")
    chosen = await bulk.choose(bus, bulk.freezing(by="kim"), desk.wanted)
    for request, verb in ((first, "cancel"), (second, "freeze")):
        assert (await desk.mesh("request", verb, request)).status == Exit.DONE
    sent = batch.Batch(bus, chosen.orders)
    await sent.run()
    came = {each.request: (each.outcome, each.code) for each in sent.came}
    assert came == {first: ("over", "cancelled"), second: ("refused", "frozen")}


async def test_every_escalation_is_resolved_and_questions_are_passed_over(desk: Desk, stage: Stage) -> None:
    first, second = await desk.escalated(desk.word), await desk.escalated(desk.word)
    asked, work = await desk.begun(desk.word)
    ask = Ask(to_agent=HUMAN, question="which one?")
    await (await stage.actor("a")).propose(asked, work, ask)
    await stage.reaches(asked, "turn.suspended")
    wrong = await desk.mesh("human", "resolve", *desk.every, "--to", "nobody", "--yes")
    assert wrong.status == Exit.USAGE, wrong
    done = await desk.mesh("human", "resolve", *desk.every, "--to", "b", "--note", "look", "--yes", "--json")
    assert done.status == Exit.DONE, done
    assert list(done.json["passed_over"].values()) == [1]
    for request in (first, second):
        event = is_(await desk.last(request), events.EscalationResolved)
        assert (event.to, event.work.handoff.summary, batch.batch_of(event)) == (
            "b",
            "look",
            done.json["batch"],
        )
    assert type_of(await desk.last(asked)) == "turn.suspended"


async def test_every_doubt_is_settled_and_escalations_are_passed_over(desk: Desk, stage: Stage) -> None:
    found = [await desk.doubted(desk.word), await desk.doubted(desk.word)]
    other = await desk.escalated(desk.word)
    none = await desk.mesh(
        "doubt", "settle", *desk.every, "--not-done", "--action", "ship", "--yes", "--json"
    )
    assert list(none.json["passed_over"].items()) == [
        ("waits for something else than a doubt about ship", 3)
    ], none
    done = await desk.mesh(
        "doubt", "settle", *desk.every, "--not-done", "--action", "pay", "--yes", "--by", "kim", "--json"
    )
    assert (done.status, list(done.json["passed_over"].values())) == (Exit.DONE, [1]), done
    for request in found:
        event = is_(await desk.last(request), events.EffectSettled)
        past = event.work.past[0]
        assert (past.settled, past.by) == ("not_done", "kim")
        assert batch.batch_of(event) == done.json["batch"]
    assert type_of(await desk.last(other)) == "escalation.raised"


async def test_what_came_to_nothing_is_rerun_once(desk: Desk, stage: Stage) -> None:
    old = await desk.several(3)
    actor = await stage.actor("a")
    for request in old:
        await actor.propose(request, await actor.work(request), Fail(reason="the bank is down"))
        await stage.reaches(request, "request.failed")
    done = await desk.mesh(
        "request", "rerun", "--where", f"status=failed text={desk.word}", "--yes", "--json"
    )
    assert done.status == Exit.DONE, done
    new = {each["request"]: each["decided_in"] for each in done.json["came"]}
    assert sorted(new) == sorted(old)
    for request, again in new.items():
        assert again == batch.rerun_id(done.json["batch"], "op", request)
        opened = is_((await stage.log(again))[0], events.RequestOpened)
        assert (opened.rerun_of, batch.batch_of(opened)) == (request, done.json["batch"])
    for more in ((), ("--batch", done.json["batch"])):
        once = await desk.mesh(
            "request", "rerun", "--where", f"status=failed text={desk.word}", "--yes", "--json", *more
        )
        assert (once.json["came"], once.json["passed_over"]) == ([], {"rerun before": 3})


async def test_letters_are_put_back_if_their_messages_were_not_decided(desk: Desk, stage: Stage) -> None:
    found = await desk.several(3)
    guard = next(iter(stage._guards))
    guard._context.fleet = msgspec.structs.replace(guard._context.fleet, operators=())
    for request in found:
        await stage.control(request, Cancel(id="x", by="kim"))
        await stage.buried("not_allowed", request=request)
    guard._context.fleet = msgspec.structs.replace(guard._context.fleet, operators=FLEET.operators)
    several_letters = ("dead", "resend", "--yes", "--json", "--code", "not_allowed", "--where")
    one = await desk.mesh(*several_letters, f"text={found[0]}", who="admin")
    assert [(each["request"], each["outcome"]) for each in one.json["came"]] == [(found[0], "done")], one
    rest = await desk.mesh(*several_letters, f"agent=a text={desk.word}", who="admin")
    assert {each["request"] for each in rest.json["came"]} == set(found[1:])
    assert rest.json["passed_over"] == {"decided since": 1}
    assert [type_of(await desk.last(each)) for each in found] == ["request.cancelled"] * 3


async def test_ctrl_c_says_how_far_it_got_and_the_batch_goes_on(desk: Desk, stage: Stage) -> None:
    found = await desk.several(3)
    await stage.dismiss(next(iter(stage._guards)))
    command = ("request", "freeze", *desk.every, "--yes")
    async with desk.running(*command, until="3 requests to freeze") as running:
        await stage.drained("CTL", to=3)
        assert running.end(signal.SIGINT) == Exit.INTERRUPTED
        assert "3 of 3 sent, 0 decided" in running.said
        named = running.said.rpartition("--batch ")[2].strip()
    await stage.ready(await stage.guard("later"))
    done = await desk.mesh(*command, "--batch", named, "--json")
    assert done.status == Exit.DONE, done
    await stage.drained("CTL")
    assert await controls(stage, found) == {named}
    assert [await stage.types(each) for each in found] == [["request.opened", "request.frozen"]] * 3


async def test_without_a_guard_it_says_so_in_the_end(desk: Desk, stage: Stage) -> None:
    await desk.several(2)
    await stage.dismiss(next(iter(stage._guards)))
    bus = await stage.bus("op")
    chosen = await bulk.choose(bus, bulk.cancelling(by="kim"), desk.wanted)
    sent = batch.Batch(bus, chosen.orders, quiet_s=0.1)
    with pytest.raises(TimeoutError, match="2 messages"):
        await sent.run()
    assert [each.outcome for each in sent.came] == ["waits", "waits"]
    await stage.guard("later")
    for order in chosen.orders:
        await stage.reaches(order.request, "request.cancelled")
