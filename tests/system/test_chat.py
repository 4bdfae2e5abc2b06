"""`mesh chat`: messages at a terminal, in one conversation, each to whoever answered last."""

import asyncio
import sys

from mesh.agent._steps import key_of
from mesh.agent._telemetry import LiveOutput
from mesh.bus.memory import read_memory
from mesh.cli.exits import Exit
from protocol.wire import events
from protocol.wire.event_parts import Continued
from protocol.wire.handoff import Fact, Rule
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Complete, Transfer
from tests.guard.actor import Actor
from tests.guard.stage import FLEET, Stage
from tests.guard.test_removed import without, write
from tests.servers import PATIENCE_S, eventually
from tests.system.office import Office
from tests.system.terminal import environment
from tests.system.test_send import END_OF_INPUT, INTERRUPT, nth, seated

BEFORE = {"exchanges": [{"request": "r", "at": 1, "said": [{"by": "client", "text": "Seat 12?"}]}]}


async def answered(agent: Actor, request: str, words: str, *leaves: Fact, round_: int = 0) -> None:
    work = await agent.work(request, round_=round_)
    await agent.propose(request, work, Complete(answer=words, remember=leaves))


async def opened(stage: Stage, request: str) -> events.RequestOpened:
    return await stage.reached(request, events.RequestOpened)


async def test_the_next_message_goes_to_whoever_answered_last(office: Office, stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    with seated(office, "chat") as seat:
        seat.type("hello\n")
        first = await nth(a, 0)
        await a.propose(first, await a.work(first), Transfer(to_agent=AgentName("b"), summary="greet"))
        await answered(b, first, "Hello!")
        await seat.shows("b: Hello!\n> ")
        seat.type("and now?\n")
        second = await nth(b, 1)
        assert (await b.work(second)).path == ("b",)
        await answered(b, second, "Goodbye.")
        await seat.shows("b: Goodbye.\n> ")
        seat.type(END_OF_INPUT)
        assert await seat.ends() == Exit.DONE
    conversations = {(await opened(stage, request)).conversation for request in (first, second)}
    (conversation,) = conversations
    assert f"mesh: conversation {conversation};" in seat.shown


async def test_an_interrupt_cancels_the_message_and_the_next_one_ends_the_chat(
    office: Office, stage: Stage
) -> None:
    a = await stage.actor("a")
    with seated(office, "chat") as seat:
        seat.type("hello\n")
        request = await nth(a, 0)
        seat.type(INTERRUPT)
        await seat.shows("mesh: cancelled: cancelled by c1: cancelled in the chat\n> ")
        await stage.reaches(request, "request.cancelled")
        seat.type("once more\n")
        await answered(a, await nth(a, 1), "Here I am.")
        await seat.shows("a: Here I am.\n> ")
        seat.type(INTERRUPT)
        assert await seat.ends() == Exit.INTERRUPTED


async def test_a_question_is_put_with_the_name_of_who_asks(office: Office, stage: Stage) -> None:
    a = await stage.actor("a")
    with seated(office, "chat") as seat:
        seat.type("a seat\n")
        request = await nth(a, 0)
        ask = Ask(to_agent=AgentName("c1"), question="which one?")
        await a.propose(request, await a.work(request), ask)
        await seat.shows("a: which one?\n> ")
        seat.type("12A\n")
        assert (await a.work(request, round_=1)).past[0].reply == "12A"
        await answered(a, request, "It is yours.", round_=1)
        await seat.shows("a: It is yours.\n> ")


async def test_words_appear_as_they_come_and_are_not_said_twice(office: Office, stage: Stage) -> None:
    a = await stage.actor("a")
    with seated(office, "chat") as seat:
        seat.type("where?\n")
        request = await nth(a, 0)
        work = await a.work(request)
        live = LiveOutput(a.bus.send, key_of("a", request, work))
        live.hear("In row 2.")
        live.close()
        await seat.shows("a: In row 2.")
        await answered(a, request, "In row 2.")
        await seat.shows("a: In row 2.\n> ")
        assert seat.shown.count("In row 2.") == 1


async def test_a_conversation_is_gone_on_with_and_shows_what_was_said(office: Office, stage: Stage) -> None:
    a = await stage.actor("a")
    name = f"c-{a._since_ms}"

    async def remembered() -> bool:
        return bool((await read_memory(await stage.bus("audit"), "c1", name)).entries)

    with seated(office, "chat", "--conversation", name) as seat:
        seat.type("hello\n")
        await answered(a, await nth(a, 0), "Hi.", Fact(key="transcript", value=BEFORE))
        await seat.shows("a: Hi.\n> ")
    await eventually(remembered, PATIENCE_S)
    with seated(office, "chat", "--conversation", name) as seat:
        await seat.shows("client: Seat 12?\n")


async def test_the_entry_agent_gets_what_an_agent_that_has_left_cannot(office: Office, stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    with seated(office, "chat", "--to", "b") as seat:
        seat.type("hello\n")
        await answered(b, await nth(b, 0), "Hi.")
        await seat.shows("b: Hi.\n> ")
        try:
            await write(stage, without("b"))
            seat.type("still there?\n")
            request = await nth(a, 0)
            continued = (await opened(stage, request)).continued
            assert continued == Continued(last=AgentName("b"), why=Rule.KNOWN_AGENT)
            await answered(a, request, "b has left.")
            await seat.shows("a: b has left.\n> ")
        finally:
            await write(stage, FLEET)


async def test_after_an_interrupt_it_goes_to_whoever_asked_last(office: Office, stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    with seated(office, "chat") as seat:
        seat.type("a seat\n")
        request = await nth(a, 0)
        await a.propose(request, await a.work(request), Transfer(to_agent=AgentName("b"), summary="seat"))
        ask = Ask(to_agent=AgentName("c1"), question="which one?")
        await b.propose(request, await b.work(request), ask)
        await seat.shows("b: which one?\n> ")
        seat.type(INTERRUPT)
        await seat.shows("cancelled in the chat\n> ")
        seat.type("12A\n")
        second = await nth(b, 1)
        assert (await opened(stage, second)).continued == Continued(last=AgentName("b"))
        await answered(b, second, "It is yours.")
        await seat.shows("b: It is yours.\n> ")


async def test_an_agent_that_is_not_there_is_refused_and_the_chat_goes_on(
    office: Office, stage: Stage
) -> None:
    with seated(office, "chat", "--to", "nobody") as seat:
        seat.type("hello\n")
        await seat.shows("mesh: refused: known_agent: 'nobody' is not in the fleet\n> ")


async def test_without_a_terminal_lines_come_from_the_input_and_answers_go_out(
    office: Office, stage: Stage
) -> None:
    a = await stage.actor("a")
    command = [sys.executable, "-m", "mesh", "chat"]
    with (office.folder.path / "lines").open("w+") as lines:
        lines.write("hello\n\nbye\n")
        lines.flush()
        lines.seek(0)
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=office.folder.path,
            env=environment(**office.credentials("c1")),
            stdin=lines,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    await answered(a, await nth(a, 0), "Hi.")
    await answered(a, await nth(a, 1), "Goodbye.")
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert (process.returncode, out) == (Exit.DONE, b"a: Hi.\na: Goodbye.\n")
