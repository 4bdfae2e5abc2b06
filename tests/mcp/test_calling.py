"""Calling: results, refusals, time-outs, and what is left of a call whose server died."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from functools import partial
from pathlib import Path

import pytest

from mesh.agent.errors import EffectUnknown
from mesh.mcp import (
    McpDown,
    McpNotInstalled,
    McpRefused,
    McpServer,
    McpTimedOut,
    McpTooLarge,
    McpUnreached,
    McpUnusable,
    link,
)
from mesh.mcp.process import streams
from tests.certain import is_
from tests.mcp.conftest import Mount, Things, World, sharing
from tests.servers import ROOT, until


async def run(server: McpServer, name: str, /, **arguments: object) -> object:
    return await (await server.tool(name)).run(arguments)


async def pid_of(server: McpServer) -> int:
    said = is_(await run(server, "pid"), dict)
    return int(said["result"])


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


# --- results --------------------------------------------------------------------------------------


@sharing
async def test_structured_content_is_the_result_and_else_the_text(things: Things) -> None:
    server, _ = things
    assert await run(server, "point", x=1, y=2) == {"x": 1, "y": 2}
    assert await run(server, "say", text="hello") == "hello"


@sharing
async def test_of_what_is_no_text_it_says_what_it_was(things: Things) -> None:
    assert await run(things[0], "picture") == "a picture:\n[image, image/png, 6 bytes: not shown]"


@sharing
async def test_a_tools_no_is_told_in_its_words(things: Things) -> None:
    with pytest.raises(McpRefused, match=r"fail: .*closed on Sundays"):
        await run(things[0], "fail", why="closed on Sundays")


@sharing
async def test_a_result_is_bounded(things: Things) -> None:
    server, _ = things
    assert len(str(await run(server, "large", chars=998))) == 998  # and two quotes
    with pytest.raises(McpTooLarge, match="1001 bytes of at most 1000"):
        await run(server, "large", chars=999)


@sharing
async def test_calls_run_at_the_same_time(things: Things) -> None:
    server, _ = things
    both = await asyncio.gather(
        run(server, "meet", name="one", other="two"), run(server, "meet", name="two", other="one")
    )
    assert [*both] == [{"result": "one"}, {"result": "two"}]


# --- the process ----------------------------------------------------------------------------------


async def test_nothing_of_our_environment_is_passed_on_but_what_is_given(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MESH_CREDENTIALS", "ANTHROPIC_API_KEY", "NATS_URL", "SOMETHING"):
        monkeypatch.setenv(name, "ours")
    found = is_(await run(mount(env={"GIVEN": "theirs"}), "environment"), dict)
    assert found["GIVEN"] == "theirs"
    assert "ours" not in found.values()


async def test_the_process_is_gone_with_the_event_loop_that_used_it_and_when_it_is_closed(
    world: World,
) -> None:
    """The next call starts another one."""
    server = McpServer("things", command=world.command, env=world.environment)
    here = await pid_of(server)
    there = await asyncio.to_thread(lambda: asyncio.run(pid_of(server)))
    assert here != there
    await until(lambda: is_gone(here) and is_gone(there))
    again = await pid_of(server)
    assert again not in (here, there)
    await server.close()
    assert is_gone(again)
    assert await pid_of(server) != again
    await server.close()


async def test_a_server_that_ends_late_is_killed_and_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "streams", partial(streams, grace_s=0.0))
    server = McpServer("things", command=world.command, env=world.environment)
    pid = await pid_of(server)
    await server.close()
    assert is_gone(pid)


async def test_the_process_is_gone_with_an_agent_that_was_killed(world: World) -> None:
    agent = world.folder / "agent.py"
    agent.write_text(
        "import asyncio, os, sys\nfrom mesh.mcp import McpServer\n"
        "async def main():\n"
        "    server = McpServer('things', command=sys.argv[1:], env=os.environ)\n"
        "    print('pid', (await (await server.tool('pid')).run({}))['result'], flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, agent, *world.command, cwd=ROOT, stdout=PIPE
    )
    assert process.stdout is not None
    said = b""
    while not said.startswith(b"pid"):  # its log comes before
        said = await process.stdout.readline()
        assert said
    pid = int(said.split()[1])
    assert not is_gone(pid)
    process.kill()
    await process.wait()
    await until(lambda: is_gone(pid))


async def test_a_server_that_died_between_two_calls_is_started_again(mount: Mount) -> None:
    server = mount()
    pid = await pid_of(server)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: server.is_over)
    assert await run(server, "write", text="after")
    assert await pid_of(server) != pid


@pytest.mark.parametrize(
    "command", [pytest.param(["no-such-program"], id="missing"), pytest.param(["/"], id="no program")]
)
async def test_a_program_that_cannot_be_started_is_for_somebody_to_mend(
    mount: Mount, command: list[str]
) -> None:
    with pytest.raises(McpUnusable, match="things cannot be started"):
        await mount(command=command).tools()


async def test_a_server_that_ends_at_once_may_come_up_later(mount: Mount) -> None:
    with pytest.raises(McpDown, match="things ended or refused"):
        await mount(command=["false"]).tools()


async def test_a_server_that_never_says_a_word_is_not_waited_for_long(mount: Mount) -> None:
    with pytest.raises(McpDown, match=r"things was not ready within 0\.2 s"):
        await mount(command=["sleep", "600"], start_s=0.2).tools()


async def test_a_process_is_gone_though_whoever_ends_it_is_cancelled_once_more(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    command = ["sh", "-c", f"echo $$ > {noted}; exec sleep 600"]

    async def hold() -> None:
        async with streams("things", command, dict(os.environ), None):
            await asyncio.Event().wait()

    holding = asyncio.create_task(hold())
    await until(lambda: noted.exists() and noted.read_text().endswith("\n"))
    holding.cancel()
    for _ in range(3):
        await asyncio.sleep(0)  # now it waits for the process, which does not end by itself
        holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert is_gone(int(noted.read_text()))


async def test_without_the_extra_it_says_what_to_install(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.client.stdio", None)
    monkeypatch.setitem(sys.modules, "mcp.client.streamable_http", None)
    with pytest.raises(McpNotInstalled, match=r"handoff-mesh\[mcp\]"):
        await mount().tools()
    with pytest.raises(McpNotInstalled, match=r"handoff-mesh\[mcp\]"):
        await mount(url="http://127.0.0.1:9/mcp").tools()


# --- what is known when it goes wrong --------------------------------------------------------------


async def test_of_an_effect_whose_server_dies_nothing_is_known(mount: Mount, world: World) -> None:
    with pytest.raises(EffectUnknown):
        await run(mount(), "write_and_die", text="this")
    assert world.done == ["this"]


async def test_other_calls_in_flight_are_lost_with_it_each_in_its_own_way(mount: Mount, world: World) -> None:
    server = mount()
    await server.tools()
    reading = asyncio.create_task(run(server, "hang"))
    writing = asyncio.create_task(run(server, "write_and_hang", text="this"))
    await until(lambda: len(world.done) == 2)
    with pytest.raises(McpDown):
        await run(server, "die_reading")
    read, wrote = await asyncio.gather(reading, writing, return_exceptions=True)
    assert (type(read), type(wrote)) == (McpDown, EffectUnknown)
    assert await run(server, "add", a=1, b=2) == {"result": 3}, "a server that died may be asked again"


@sharing
async def test_a_reading_tool_that_takes_too_long_is_given_up_and_the_rest_goes_on(things: Things) -> None:
    server, _ = things
    with pytest.raises(McpTimedOut, match=r"within 0\.2 s"):
        await run(server, "hang")
    before = await pid_of(server)
    assert before == await pid_of(server)


@sharing
async def test_of_an_effect_that_takes_too_long_nothing_is_known(things: Things) -> None:
    with pytest.raises(EffectUnknown, match=r"within 0\.2 s"):
        await run(things[0], "write_and_hang", text="this")


async def test_an_effect_that_cannot_even_be_asked_for_did_not_happen(
    mount: Mount, world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "things"
    program.write_text(f"#!/bin/sh\nexec {' '.join(map(str, world.command))}\n")
    program.chmod(0o700)
    server = mount(command=[program])
    await server.tools()
    await server.close()
    program.unlink()
    with pytest.raises(McpUnreached, match="nothing was done: things cannot be started"):
        await run(server, "write", text="this")
    with pytest.raises(McpUnusable):
        await run(server, "add", a=1)
    assert world.done == []
