"""`mesh send`: what it says of a request that does not end in time, asks something, or is interrupted."""

import asyncio
import contextlib
import os
import pty
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from functools import partial

import msgspec
import pytest

from mesh.cli.exits import Exit
from mesh.cli.options import Where
from mesh.cli.send import _waits_for
from mesh.cli.waiting import Typed
from mesh.ops.queue import reply_command
from mesh.settings import NO_FLAGS
from protocol.wire import subjects
from protocol.wire.commands import Report, Usage
from protocol.wire.config import Policy
from protocol.wire.ids import AgentName, submitted_ms
from protocol.wire.moves import Ask, Complete, Transfer
from tests.guard.actor import Actor
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, fresh, until
from tests.system.office import Office
from tests.system.terminal import environment

INTERRUPT, END_OF_INPUT = "\x03", "\x04"


class Seat:
    """A command at a terminal of its own, which shows whatever it says."""

    def __init__(self, terminal: int, process: "subprocess.Popen[bytes]") -> None:
        self._terminal, self._process = terminal, process
        self._got = b""

    @property
    def shown(self) -> str:
        """All that was shown; a look may end within a character, or within the end of a line."""
        return self._got.decode(errors="replace").replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    async def shows(self, text: str) -> None:
        """Wait until something is shown. AssertionError when the command ends instead."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            ended = self._process.poll() is not None
            self._look()
            assert text in self.shown or not ended, f"it ended with {self._process.returncode}:\n{self.shown}"
            assert time.monotonic() < deadline, f"never shown: {text!r}\n{self.shown}"
            await asyncio.sleep(0.02)

    async def ends(self) -> int:
        """Wait for the end and return the exit status."""
        status = await asyncio.to_thread(self._process.wait, PATIENCE_S)
        self._look()
        return status

    def _look(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # nothing now; nobody is at the other end
            while part := os.read(self._terminal, 4_096):
                self._got += part


@contextlib.contextmanager
def seated(office: Office, *arguments: object, who: str = "c1") -> Iterator[Seat]:
    """Give a command at a terminal, and kill it in the end."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)

    process = subprocess.Popen(
        [sys.executable, "-m", "mesh", *map(str, arguments)],
        cwd=office.folder.path,
        env=environment(**office.credentials(who)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=partial(ioctl, 0, termios.TIOCSCTTY, 0),  # the session takes it
    )
    os.close(theirs)
    try:
        yield Seat(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


async def asked(stage: Stage, **ask: object) -> tuple[Actor, str]:
    """Have agent `a` ask the client of the next request; return the agent and the request."""
    a = await stage.actor("a")
    request = await a.first()
    move = Ask(to_agent=AgentName("c1"), question="which one?", **ask)  # type: ignore[arg-type]
    await a.propose(request, await a.work(request), move)
    return a, request


async def nth(agent: Actor, number: int) -> str:
    """Return the request of a message that an agent got, counted from 0."""
    await agent.first()
    since = agent._since_ms

    def new() -> list[str]:
        return [request for request in agent.got if submitted_ms(request) >= since]

    await until(lambda: len(new()) > number, PATIENCE_S)
    return new()[number]


# --- at a terminal --------------------------------------------------------------------------------


async def test_the_patience_ends_though_nobody_presses_enter(office: Office, stage: Stage) -> None:
    with seated(office, "send", "hello", "--timeout", "12") as seat:
        _, request = await asked(stage)
        await seat.shows("which one?\n> ")
        seat.type("re")
        assert await seat.ends() == Exit.TIMED_OUT
    last = seat.shown.splitlines()[-1]
    assert last.startswith(f"mesh: {request} has not ended within 12 s; you are asked: which one?; ")
    assert last.endswith(f"it goes on with a reply: mesh human reply {request} '…' [timeout]")


async def test_an_interrupt_ends_it_and_says_what_goes_on(office: Office, stage: Stage) -> None:
    with seated(office, "send", "hello") as seat:
        _, request = await asked(stage)
        await seat.shows("which one?\n> ")
        seat.type(INTERRUPT)
        assert await seat.ends() == Exit.INTERRUPTED
    assert seat.shown.splitlines()[-1] == (
        f"mesh: {request} goes on; mesh request watch {request} shows it, "
        f"mesh request cancel {request} stops it"
    )


async def test_an_end_elsewhere_is_told_at_once(office: Office, stage: Stage) -> None:
    with seated(office, "send", "hello") as seat:
        _, request = await asked(stage)
        await seat.shows("which one?\n> ")
        await office.mesh("request", "cancel", request, "--reason", "enough", "--by", "kim")
        assert await seat.ends() == Exit.FAILED
    assert seat.shown.endswith(f"> \nmesh: {request} was cancelled by kim (op): enough\n")


async def test_whoever_ends_the_input_is_told_how_to_reply_elsewhere(office: Office, stage: Stage) -> None:
    with seated(office, "send", "hello", "--as", "c1") as seat:
        a, request = await asked(stage)
        await seat.shows("which one?\n> ")
        seat.type("re" + END_OF_INPUT)  # hands over what is typed so far
        seat.type(END_OF_INPUT)
        await seat.shows(f"mesh: it goes on with a reply: mesh human reply {request} '…' --as c1\n")
        done = await office.mesh("human", "reply", request, "blue", "--as", "c1", who="c1")
        assert done.status == Exit.DONE, done
        work = await a.work(request, round_=1)
        assert work.past[0].reply == "blue"
        await a.propose(request, work, Complete(answer="thanks"))
        assert await seat.ends() == Exit.DONE
    assert seat.shown.endswith("thanks\n")


async def test_a_question_that_was_answered_elsewhere_makes_room_for_the_next(
    office: Office, stage: Stage
) -> None:
    with seated(office, "send", "hello") as seat:
        a, request = await asked(stage)
        await seat.shows("which one?\n> ")
        seat.type("re")
        assert (await office.mesh("human", "reply", request, "blue", who="c1")).status == Exit.DONE
        again = Ask(to_agent=AgentName("c1"), question="are you sure?")
        await a.propose(request, await a.work(request, round_=1), again)
        await seat.shows("had its reply elsewhere, or its time was up\nare you sure?\n> ")
        seat.type("yes\n")
        work = await a.work(request, round_=2)
        assert [past.reply for past in work.past] == ["blue", "yes"]
        await a.propose(request, work, Complete(answer="thanks"))
        assert await seat.ends() == Exit.DONE


# --- without a terminal ---------------------------------------------------------------------------


async def test_where_nobody_sits_the_question_and_its_command_are_said_at_once(
    office: Office, stage: Stage
) -> None:
    asking = asyncio.create_task(asked(stage, schema={"type": "boolean"}))
    async with office.running("send", "hello", until="--json-value", who="c1") as sending:
        a, request = await asking
        assert f"mesh: {request} asks: which one?\n" in sending.said
        wanted = (
            f"""a reply that follows {{"type":"boolean"}}: mesh human reply {request} true --json-value\n"""
        )
        assert wanted in sending.said
        await office.mesh("human", "reply", request, "true", "--json-value", who="c1")
        work = await a.work(request, round_=1)
        assert work.past[0].reply is True
        await a.propose(request, work, Complete(answer="thanks"))
        assert await asyncio.to_thread(sending.ended) == Exit.DONE
        assert sending.said.endswith("thanks\n")


@pytest.mark.parametrize("follow", [[], ["--follow"]], ids=["alone", "follow"])
async def test_whoever_is_interrupted_knows_what_goes_on(
    office: Office, stage: Stage, follow: list[str]
) -> None:
    a = await stage.actor("a")
    with seated(office, "send", "hello", *follow) as seat:
        request = await a.first()
        assert (await office.mesh("request", "show", request)).status == Exit.DONE
        if follow:
            await seat.shows(f"mesh: {request}\n")
        seat.type(INTERRUPT)
        assert await seat.ends() == Exit.INTERRUPTED
    assert f"mesh: {request} goes on; mesh request watch {request} shows it" in seat.shown.splitlines()[-1]
    if follow:
        assert seat.shown.startswith(f"mesh: {request}\n")


async def test_a_viewers_eyes_tell_whether_the_question_still_stands(office: Office, stage: Stage) -> None:
    audit = await stage.bus("audit")
    request = await office.asked("c1")
    told = await _waits_for(audit, request, Where(NO_FLAGS), "c1")
    assert told == f"you are asked: which one?; it goes on with a reply: mesh human reply {request} '…'"
    assert not await _waits_for(audit, request, Where(NO_FLAGS), "c2")
    await office.mesh("human", "reply", request, "red", who="c1")
    assert not await _waits_for(audit, request, Where(NO_FLAGS), "c1")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        pytest.param(None, "'…'", id="none"),
        pytest.param({"enum": ["red"]}, "'…'", id="no-type"),
        pytest.param({"type": ["string", "null"]}, "'…'", id="text-among-others"),
        pytest.param({"type": "number"}, "'…' --json-value", id="a-number"),
        pytest.param({"type": "boolean"}, "true --json-value", id="a-truth"),
        pytest.param(True, "'…'", id="any"),
    ],
)
def test_the_command_asks_for_json_where_text_cannot_be_meant(schema: object, said: str) -> None:
    assert reply_command("app_1", schema) == f"mesh human reply app_1 {said}"


# --- what a terminal hands over -------------------------------------------------------------------


@contextlib.contextmanager
def terminal(*, by_lines: bool) -> Iterator[tuple[int, int]]:
    """Yield a terminal, our end first; one that hands over lines, or whatever there is."""
    ours, theirs = pty.openpty()
    if not by_lines:
        settings = termios.tcgetattr(theirs)
        settings[3] &= ~termios.ICANON
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
    try:
        yield ours, theirs
    finally:
        os.close(theirs)
        os.close(ours)


@pytest.mark.parametrize("by_lines", [True, False], ids=["lines", "pieces"])
async def test_pasted_lines_are_taken_one_at_a_time(by_lines: bool) -> None:
    with terminal(by_lines=by_lines) as (ours, theirs):
        typed = Typed(theirs)
        os.write(ours, "größe\nblue\nre".encode())
        assert [await typed.line(), await typed.line()] == ["größe", "blue"]
        third = asyncio.create_task(typed.line())
        os.write(ours, b"d\n")
        assert await third == "red"


async def test_the_end_of_the_input_is_no_reply_and_neither_is_half_a_line() -> None:
    with terminal(by_lines=True) as (ours, theirs):
        typed = Typed(theirs)
        os.write(ours, b"re" + END_OF_INPUT.encode() * 2)
        with pytest.raises(EOFError):
            await typed.line()
        os.write(ours, b"blue\n")
        assert await typed.line() == "blue"


async def test_a_terminal_that_hangs_up_says_nothing_more() -> None:
    ours, theirs = pty.openpty()
    try:
        waiting = asyncio.create_task(Typed(theirs).line())
        await asyncio.sleep(0)
        os.close(ours)
        with pytest.raises(EOFError):
            await waiting
    finally:
        os.close(theirs)


@pytest.mark.parametrize("by_lines", [True, False], ids=["lines", "pieces"])
async def test_what_was_typed_for_a_question_that_is_over_is_dropped(by_lines: bool) -> None:
    with terminal(by_lines=by_lines) as (ours, theirs):
        typed = Typed(theirs)
        os.write(ours, b"rm -r")
        waiting = asyncio.create_task(typed.line())
        assert await asyncio.to_thread(os.read, ours, 5) == b"rm -r"  # its echo: it has come to the other end
        if not by_lines:
            await until(lambda: bool(typed._left))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        os.write(ours, b"blue\n")
        assert await typed.line() == "blue"


async def test_a_person_who_has_it_is_named_as_what_it_waits_for(stage: Stage, office: Office) -> None:
    audit = await stage.bus("audit")
    request = await office.escalated()
    told = await _waits_for(audit, request, Where(NO_FLAGS), "c1")
    assert told.startswith(
        "a person has it (asked: a person, please); it goes on when they have decided: mesh request show"
    )
    assert request in told
    assert (await _waits_for(audit, await office.asked(), Where(NO_FLAGS), "c1")).startswith(
        "a person was asked; "
    )
    assert (await _waits_for(audit, await office.doubted(), Where(NO_FLAGS), "c1")).startswith(
        "a person has to say what became of"
    )


async def test_what_no_person_has_is_not_said_to_be_a_persons(stage: Stage, office: Office) -> None:
    audit = await stage.bus("audit")
    request, _ = await office.begun()
    assert not await _waits_for(audit, request, Where(NO_FLAGS), "c1")
    client = await stage.client()
    assert not await _waits_for(audit, client.new_id(), Where(NO_FLAGS), "c1")


async def test_who_cannot_look_is_told_where_to(stage: Stage, office: Office) -> None:
    done = await office.mesh("send", "hello", "--timeout", "0", who="c1")
    assert done.status == Exit.TIMED_OUT
    assert "has not ended within 0 s; it goes on: mesh request show c1_" in done.err


# --- what the end tells -----------------------------------------------------------------------------


async def test_the_end_tells_cost_and_path_where_the_policy_says_so(office: Office, stage: Stage) -> None:
    """Read by a program that follows the request, and printed by the command."""
    told = Policy(name="tells", tell_client=("usage", "path"))
    await (await stage.bus("admin")).publish_durable(subjects.policy("tells"), msgspec.json.encode(told))
    a, b = await stage.actor("a"), await stage.actor("b")
    usage = Usage(nano_dollars=7, tokens=5, model_calls=1)
    for number, policy in enumerate(("default", "tells")):
        sending = asyncio.create_task(office.mesh("send", "hi", "--policy", policy, "--json", who="c1"))
        request = await nth(a, number)
        move = Transfer(to_agent=AgentName("b"), summary="yours")
        await a.propose(request, await a.work(request), move, report=Report(usage=usage))
        await b.propose(request, await b.work(request), Complete(answer=1), report=Report(usage=usage))
        said, outcome = (await sending).json, await (await stage.client("c1")).wait(request)
        if policy == "default":
            assert (outcome.usage, outcome.path) == (None, ())
            assert {"usage", "path"}.isdisjoint(said)
        else:
            assert outcome.usage == Usage(nano_dollars=14, tokens=10, model_calls=2)
            assert outcome.path == ("a", "b")
            assert (said["usage"]["tokens"], said["path"]) == (10, ["a", "b"])


async def test_it_goes_on_with_whoever_spoke_last(office: Office, stage: Stage) -> None:
    b, talk = await stage.actor("b"), fresh()
    for number, to in enumerate((("--to", "b"), ())):
        line = ("send", "hi", "--conversation", talk, "--continue-with", "last", *to, "--json")
        sending = asyncio.create_task(office.mesh(*line, who="c1"))
        request = await nth(b, number)
        await b.propose(request, await b.work(request), Complete(answer=1))
        assert (await sending).json["answer"] == 1
    wrong = await office.mesh("send", "hi", "--continue-with", "last", who="c1")
    assert (wrong.status, "needs a --conversation" in wrong.err) == (Exit.USAGE, True)
