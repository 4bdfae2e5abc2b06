"""A client and an agent in Node.js, written from docs/protocol.md, beside a guard and an agent in Python.

Every service is a process of its own; nothing is shared but the bus. The Node project is the one in
docs/examples/node, installed into a temporary directory by its own package manager.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mesh.bus.connection import Bus, connect
from mesh.bus.embedded import EmbeddedServer
from mesh.bus.log import JetStreamLog
from mesh.errors import NoResponders
from mesh.fleet import parse_fleet
from mesh.replay.rejudge import rejudge
from mesh.setup import Prepared, apply, prepare
from tests.docs.pages import DOCS, blocks
from tests.servers import ROOT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXAMPLE = ROOT / "docs" / "examples" / "node"
FLEET = parse_fleet("""
name = "desk"
entry = "front"
[agents.front]
to = ["records"]
[agents.records]
intents = ["look_up"]
[clients.app]
[operators.ops]
""")
Said = dict[str, Any]


class Speaker:
    """A process that says one JSON object a line."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.said: list[Said] = []

    async def until(self, key: str, within_s: float = 20.0) -> Said:
        """Return the next thing said that has `key`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within_s):
            while line := await self.process.stdout.readline():
                self.said.append(json.loads(line))
                if key in self.said[-1]:
                    return self.said[-1]
        raise AssertionError(f"it ended without {key!r}; it said {self.said}")

    async def ended(self, within_s: float = 20.0) -> int:
        """Read on to the end; return the exit status."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within_s):
            async for line in self.process.stdout:
                self.said.append(json.loads(line))
            return await self.process.wait()

    def all(self, key: str) -> list[Any]:
        return [said[key] for said in self.said if key in said]


class Desk:
    """The running mesh."""

    def __init__(self, url: str, prepared: Prepared, project: Path, stack: contextlib.AsyncExitStack) -> None:
        self.url = url
        self.keys = prepared.directory / "keys"
        self._prepared = prepared
        self._project = project
        self._stack = stack

    async def bus(self, name: str) -> Bus:
        seed = self._prepared.keys[name].seed
        return await self._stack.enter_async_context(await connect(self.url, name=name, seed=seed))

    async def spawn(self, *command: str, cwd: Path, env: dict[str, str] | None = None) -> Process:
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, cwd=cwd, env=env)
        self._stack.push_async_callback(_end, process)
        return process

    async def python(self, which: str) -> None:
        module = "tests.system.other_language_process"
        await self.spawn(sys.executable, "-m", module, which, self.url, str(self.keys), cwd=ROOT)

    async def node(self, script: str, name: str, *arguments: str, anonymous: bool = False) -> Speaker:
        env = {**os.environ, "NATS_URL": self.url, "MESH_NAME": name}
        env.pop("MESH_CREDENTIALS", None)
        if not anonymous:
            env["MESH_CREDENTIALS"] = str(self.keys / f"{name}.nk")
        return Speaker(await self.spawn("node", script, *arguments, cwd=self._project, env=env))


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, installed. What lacks fails the test and is named."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.fail(
                f"{tool} is not installed: needed are Node.js 18 or newer and npm (.ci/run brings both)"
            )
    directory = tmp_path_factory.mktemp("node") / "project"
    shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns("node_modules", "package-lock.json"))
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    installed = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=90, check=False
    )
    if installed.returncode:
        pytest.fail(f"npm install failed:\n{installed.stderr}")
    return directory


@contextlib.asynccontextmanager
async def opened(project: Path, directory: Path) -> AsyncIterator[Desk]:
    """Server, guard and the Python agent, each in its process. What they are not ready for yet waits."""
    prepared = prepare(FLEET, directory, anonymous="app")
    admin = prepared.keys["admin"].seed
    server = EmbeddedServer(prepared.accounts, directory / "store", sync_always=False, probe_seed=admin)
    async with contextlib.AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.kill)
        made = Desk(server.url, prepared, project, stack)
        await apply(await made.bus("admin"), FLEET)
        await made.python("guard")
        await made.python("records")
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(project: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with opened(project, tmp_path_factory.mktemp("desk")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(desk: Desk) -> Speaker:
    """The agent in Node.js, ready."""
    agent = await desk.node("agent.mjs", "front")
    await agent.until("ready")
    return agent


async def test_a_request_goes_from_node_to_node_to_python_and_back_and_is_answered(
    desk: Desk, front: Speaker
) -> None:
    client = await desk.node("client.mjs", "app", "What do I owe?", "--fact", "customer=4711")
    assert await client.ended() == 0, client.said
    assert client.all("answer") == ["You owe 12.99 EUR."]

    events = await _events(desk, client.all("submitted")[0])
    assert [(event["type"], event["to"]) for event in events] == [
        ("request.opened", "front"),
        ("move.refused", "front"),
        ("handoff.admitted", "records"),
        ("handoff.admitted", "front"),
        ("request.completed", "app"),
    ]
    assert [event["work"]["path"] for event in events[2:4]] == [["front", "records"], ["front"]]


async def test_a_node_agent_sees_why_it_was_refused_and_does_something_else(
    desk: Desk, front: Speaker
) -> None:
    client = await desk.node("client.mjs", "app", "And now?")
    assert await client.ended() == 0, client.said
    request = client.all("submitted")[0]
    while True:
        took = await front.until("took")
        if took["request"] == request and took["took"] == "move.refused":
            break
    assert took["refusal"]["rule"] == "known_agent"
    assert "records" in took["refusal"]["hint"]
    assert (await front.until("proposed"))["to"] == "records"


async def test_a_question_of_the_python_agent_is_answered_by_the_node_client(
    desk: Desk, front: Speaker
) -> None:
    client = await desk.node("client.mjs", "app", "Please tell me what I owe")
    assert await client.ended() == 0, client.said
    assert client.all("asked") == ["May I look into your account?"]
    events = await _events(desk, client.all("submitted")[0])
    resumed = next(event for event in events if event["type"] == "turn.resumed")
    assert resumed["work"]["past"] == [{"round": 0, "how": "replied", "reply": "yes", "by": "app"}]


async def test_a_submit_that_cannot_be_taken_up_is_told_by_a_notice(desk: Desk) -> None:
    unusable = "app_01m7yvhwyg5r5az9zzvpwahp5f"  # a ULID is in upper case
    client = await desk.node("client.mjs", "app", "--id", unusable, "Hello")
    assert await client.ended() == 3, client.said
    assert client.all("ack")[0]["stream"] == "PROP"
    notice = client.all("notice")[0]
    assert (notice["request"], notice["error"]["code"]) == (unusable, "unusable_id")


async def test_on_a_development_server_a_client_needs_no_credentials(desk: Desk, front: Speaker) -> None:
    client = await desk.node("client.mjs", "app", "What do I owe?", anonymous=True)
    assert await client.ended() == 0, client.said
    assert client.all("answer") == ["You owe 12.99 EUR."]


async def test_a_node_agent_is_found_and_ends_cleanly_on_sigterm(desk: Desk, front: Speaker) -> None:
    operator = await desk.bus("ops")
    found = json.loads((await operator.request("$SRV.PING.front")).data)
    assert (found["type"], found["name"]) == ("io.nats.micro.v1.ping_response", "front")
    front.process.send_signal(signal.SIGTERM)
    assert await front.ended() == 0

    async def gone() -> bool:
        try:
            await operator.request("$SRV.PING.front")
        except NoResponders:
            return True
        return False

    await eventually(gone)


async def test_the_code_on_the_page_put_together_is_an_agent_and_a_client(
    project: Path, tmp_path: Path
) -> None:
    async with opened(project, tmp_path) as desk:
        connecting, making_ids, client, agent, pulling = _code_on_the_page(desk)
        as_client = connecting.replace('"front"', '"app"')
        last_look = f"console.log(JSON.stringify({{ answer: {_LAST_ANSWER} }}));\nawait nc.close();\n"
        (project / "page-agent.mjs").write_text(
            "\n".join((connecting, making_ids, agent, pulling, "pull();"))
        )
        (project / "page-client.mjs").write_text("\n".join((as_client, making_ids, client, last_look)))
        await desk.node("page-agent.mjs", "front")
        asking = await desk.node("page-client.mjs", "app")
        assert await asking.ended() == 0
        assert asking.all("answer") == ["12.99"]


_LAST_ANSWER = "(await nc.request(`$JS.API.DIRECT.GET.LOG.mesh.evt.${name}.${id}`)).json().answer"


def _code_on_the_page(desk: Desk) -> list[str]:
    """Return the page's JavaScript, up to where it speaks of another library, for this mesh."""
    page = (DOCS / "protocol.md").read_text()
    code = [block.text for block in blocks(page) if block.language == "js"][:5]
    return [
        text.replace("`keys/", f"`{desk.keys}/").replace("nats://127.0.0.1:4222", desk.url) for text in code
    ]


async def _events(desk: Desk, request: str) -> list[Said]:
    """Return a request's events; its log must be judged again to the letter, and its chain hold."""
    stored = await JetStreamLog(await desk.bus("ops"), leader=False).read(request)
    bodies = [each.body for each in stored]
    again = rejudge(bodies)
    assert again.same, again
    return [json.loads(body) for body in bodies]
