"""Whatever lies in the streams, every command that reads them ends in words, and shows what is sound."""

import base64
import itertools
import logging
import re
import time
import unicodedata
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from mesh.bus.nats_protocol import Incoming
from mesh.testing import EmbeddedBus
from protocol.wire import events, subjects
from protocol.wire.ids import request_id
from protocol.wire.records import Card, Record, dead_letter
from tests.guard.stage import Stage, staged
from tests.logs import plain_logs
from tests.system.office import Office
from tests.system.terminal import Finished

pytestmark = pytest.mark.asyncio(loop_scope="module")
STEERING = "x\x1b[2J\x9b1A\x07\u202egnp\r"
DEEP = b"[" * 5_000 + b"]" * 5_000
MALFORMED: Mapping[str, bytes] = {
    "nothing": b"",
    "no UTF-8": b"\xff\xfe\x00",
    "a lone surrogate": b'{"v":1,"at":1,"by":"a","code":"\\ud800","detail":"\\ud800","subject":"x"}',
    "5,000 deep": DEEP,
    "5,000 deep in a field": b'{"v":1,"name":"a","version":"1","tools":' + DEEP + b"}",
    "not an object": b"[1]",
    "without anything": b"{}",
}
SOUND = {
    "letter": dead_letter(
        at=1, by="a", code="sound", detail=STEERING, subject=STEERING, data=STEERING.encode()
    ),
    "dated 10^30": dead_letter(at=10**30, by="a", code="late", detail="d", subject="s", data=b"d"),
    "step": Record(kind="effect", name=STEERING, nonce="n", at=1, value=STEERING),
    "step dated 10^30": Record(kind="effect", name="pay", nonce="n", at=10**30),
    "card": Card(name="a", version=STEERING, description=STEERING, model=STEERING),
}  # fmt: skip
BODIES = {**MALFORMED, **{name: msgspec.json.encode(each) for name, each in SOUND.items()}}


COMMANDS = [
    "request ls --limit 100",
    "request show {sound} --steps",
    "human ls",
    "human show {sound}",
    "human watch --once --since 1d",
    "doubt ls",
    "dead ls",
    "agent ls",
    "log tail --no-follow --lines 100",
    "log export {sound}",
    "cost",
    "why {sound}",
    "replay {sound}",
    "doctor",
]


class Littered:
    """An office beside streams full of rubbish, among it one request and a letter that are sound."""

    def __init__(self, office: Office, sound: str, forged: list[str]) -> None:
        self.office = office
        self.sound = sound
        self.forged = forged

    async def give(self, *arguments: object, statuses: tuple[int, ...] = (0, 1)) -> Finished:
        """Give a command; it must end in words that steer nothing."""
        give = self.office.process if "watch" in arguments else self.office.mesh  # it takes signals
        done = await give(*arguments)
        assert done.status in statuses, (arguments, done)
        said = done.err if "--json" in arguments or "export" in arguments else done.out + done.err
        assert not [char for char in said if unicodedata.category(char) == "Cc" and char not in "\n\t"], said
        assert "\u202e" not in said
        return done


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def littered(
    furnished: EmbeddedBus, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Littered]:
    with plain_logs(logging.CRITICAL):
        async with staged(furnished, guards=1) as stage:
            yield await _littered(stage, tmp_path_factory.mktemp("office"))


async def _littered(stage: Stage, path: Path) -> Littered:
    office = Office(stage, path)
    sound = await office.escalated(text=STEERING)
    opened, raised = await stage.log(sound)
    assert isinstance(opened, events.RequestOpened)
    guard, admin = await stage.bus("guard", "forger"), await stage.bus("admin")
    numbers = itertools.count()

    async def forge(body: bytes | events.AnyEvent, to: str) -> str:
        request = request_id("c1", time.time_ns() // 1_000_000, next(numbers).to_bytes(10, "big"))
        stage.spoiled.add(request)
        await stage.forge(body, to, request, after=0)
        return request

    forged = []
    for n, body in enumerate(BODIES.values()):
        agent = "abcde"[n % 5]
        bus = await stage.bus(agent)
        await bus.publish_durable(subjects.dead(agent), body)
        await guard.publish_durable(subjects.dead_from(agent), body)
        await bus.publish_durable(subjects.card(agent), body)
        await bus.publish_durable(f"mesh.step.{agent}.{sound}.{opened.work.turn}.0-{n}", body)
        await admin.publish_durable(f"mesh.conf.breaker.{agent}", body)
        forged += [await forge(body, to) for to in ("human", "_", "a")]
    forged.append(await forge(msgspec.structs.replace(raised, n=0), "human"))  # it follows from nothing
    return Littered(office, sound, forged)


@pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
@pytest.mark.parametrize("command", COMMANDS)
async def test_every_command_that_reads_ends_in_words(
    littered: Littered, command: str, as_json: bool
) -> None:
    if as_json and command.startswith("log export"):
        return
    arguments = command.format(sound=littered.sound).split()
    done = await littered.give(*arguments, *(["--json"] if as_json else []))
    if as_json and arguments[:2] != ["log", "tail"]:  # which gives bytes as they are stored
        for line in done.out.splitlines():
            msgspec.json.decode(line)


async def test_what_is_sound_is_shown_among_it(littered: Littered) -> None:
    letters = (await littered.give("dead", "ls", "--json")).json
    assert len(letters) == 2 * len(BODIES)
    assert [each["code"] for each in letters].count("sound") == 2
    assert [each["at"] for each in letters if each["code"] == "late"] == [10**30] * 2
    waiting = await littered.give("human", "ls", "--json")
    assert [each["request"] for each in waiting.json] == [littered.sound]
    assert littered.forged[-1] in waiting.err, "what is left out is named"
    told = (await littered.give("request", "show", littered.sound, "--json")).json
    assert told["running"][0]["steps"] == []
    assert littered.sound in (await littered.give("request", "ls", "--limit", 100)).out


ON_A_TERMINAL = [
    "request show {sound} --steps",
    "human show {sound}",
    "dead ls",
    "dead show 15",
    "agent ls",
    "why {sound}",
]


@pytest.mark.parametrize("extra", [[], ["--json"]], ids=["for-people", "json"])
@pytest.mark.parametrize("command", ON_A_TERMINAL)
async def test_on_a_terminal_nothing_steers_it(littered: Littered, command: str, extra: list[str]) -> None:
    arguments = [*command.format(sound=littered.sound).split(), *extra]
    screen = await littered.office.screen(*arguments)
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", screen)  # colours of our own
    assert littered.sound in drawn or "x\\x1b[2J" in drawn or "x\\u001b[2J" in drawn
    assert not [char for char in drawn if unicodedata.category(char) == "Cc" and char not in "\n\t\r"], drawn
    assert "\r" not in drawn.replace("\r\n", "")
    assert "\u202e" not in drawn


async def test_every_letter_can_be_shown_and_is_exact_in_json(littered: Littered) -> None:
    for seq, body in zip(range(1, 2 * len(BODIES), 2), BODIES.values(), strict=True):
        shown = await littered.give("dead", "show", seq)
        assert shown.status == 0
        as_program_reads = (await littered.give("dead", "show", seq, "--json")).json
        if as_program_reads["code"] == "unreadable":
            assert base64.b64decode(as_program_reads.get("data", "")) == body


async def test_a_request_that_cannot_be_read_says_so(littered: Littered) -> None:
    for request in littered.forged[::3]:  # each body once, whomever it is for
        for command in ("request show", "why", "replay", "human show", "log verify"):
            await littered.give(*command.split(), request, statuses=(1,))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_any_card_and_any_answer_leave_the_roster_whole(littered: Littered, body: bytes) -> None:
    stage = littered.office.stage
    agent = await stage.bus("a")
    await agent.publish_durable(subjects.card("a"), body)

    def answer(asked: Incoming) -> None:
        for said in (body, b'{"name":"a","id":"1","version":"' + STEERING.encode() + b'"}'):
            agent.send(asked.reply, said)

    answering = await agent.subscribe("$SRV.STATS", answer)
    try:
        listed = (await littered.give("agent", "ls", "--json")).json
        assert [each["name"] for each in listed] == list("abcde")
        for name in "abcde":
            await littered.give("agent", "show", name)
    finally:
        await answering.close()
