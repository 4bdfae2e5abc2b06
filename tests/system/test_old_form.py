"""A log of form 1, which an earlier build wrote: whatever meets it says so, and what to do."""

import json
import logging
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from mesh.bus.connection import connect
from mesh.bus.credentials import seed_file
from mesh.bus.event_log import JetStreamLog
from mesh.client import Client
from mesh.errors import OldForm
from mesh.settings import running_dev
from mesh.ui import Options, keys_in, serving
from tests.golden.make import FORMS
from tests.guard.stage import Stage, furnished_mesh, seed_directory, staged
from tests.logs import plain_logs
from tests.servers import PATIENCE_S, eventually, until
from tests.system.office import Office
from tests.system.terminal import READY
from tests.system.test_cli_dev import desk

SAID = (
    "events of form 1, of an earlier build; this build reads form 2 on. Read it with the build that wrote it"
)
NEVER = re.compile("altered|broken|decoded|cannot be read|does not name|unknown event")
LINES = (FORMS / "v1.jsonl").read_bytes().splitlines()
REQUEST = json.loads(LINES[0])["request"]
OPEN = REQUEST[:-1] + "2"
"""Another one, which a person has."""
ESCALATED = 17
"""Events of the story up to an escalation."""


async def put(log: JetStreamLog) -> None:
    """Put two requests of form 1 into a log, as their guard did."""
    for request, events in ((REQUEST, LINES), (OPEN, LINES[:ESCALATED])):
        after = 0
        for line in events:
            body = line.replace(REQUEST.encode(), request.encode())
            after = await log.append(json.loads(line)["to"], request, body, after=after)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """A mesh that holds nothing but a request of form 1, and no guard."""
    directory = tmp_path_factory.mktemp("old")
    with plain_logs(logging.CRITICAL):
        async with furnished_mesh(directory) as mesh, staged(mesh) as own:
            own.spoiled |= {REQUEST, OPEN}
            await put(JetStreamLog(await own.bus("guard", "earlier")))
            yield own


@pytest.fixture
def office(stage: Stage, tmp_path: Path) -> Office:
    return Office(stage, tmp_path)


pytestmark = pytest.mark.asyncio(loop_scope="module")

COMMANDS = {
    "show": ("request", "show", REQUEST),
    "show a file": ("request", "show", FORMS / "v1.jsonl"),
    "watch": ("request", "watch", REQUEST),
    "list": ("request", "ls"),
    "why": ("why", REQUEST),
    "replay": ("replay", REQUEST),
    "replay a file": ("replay", FORMS / "v1.jsonl"),
    "verify": ("log", "verify"),
    "verify a request": ("log", "verify", REQUEST),
    "verify a file": ("log", "verify", FORMS / "v1.jsonl"),
    "export": ("log", "export", REQUEST),
    "export all": ("log", "export", "--all"),
    "tail": ("log", "tail", "--no-follow"),
    "cost": ("cost",),
    "people's list": ("human", "ls"),
    "people's request": ("human", "show", OPEN),
    "rerun": ("request", "rerun", REQUEST),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
async def test_a_command_refuses_it_by_name_and_says_what_to_do(
    office: Office, command: tuple[object, ...]
) -> None:
    done = await office.mesh(*command)
    assert done.status != 0
    assert SAID in done.err
    assert "[protocol.old_form]" in done.err
    assert not NEVER.search(done.out + done.err), done


async def test_doctor_finds_it(office: Office) -> None:
    done = await office.mesh("doctor")
    found = next(line for line in done.out.splitlines() if SAID in line)
    assert found.split() [:2] == ["FOUND", "log:"]  # fmt: skip
    assert done.status != 0


async def test_a_guard_does_not_begin(stage: Stage) -> None:
    guard = await stage.guard("newer")
    task = stage._guards[guard]
    await until(task.done)
    assert isinstance(task.exception(), OldForm)
    assert not guard.ready
    stage._guards.pop(guard)


async def test_a_client_that_waits_for_it_is_told(stage: Stage) -> None:
    client = Client(await stage.bus("c1", "waits"), "c1")
    with pytest.raises(OldForm, match="form 1"):
        await client.wait(REQUEST, timeout_s=PATIENCE_S)


async def test_the_page_says_so_of_the_list_and_of_the_request(stage: Stage, tmp_path: Path) -> None:
    keys = keys_in(stage.mesh.url, seed_directory(stage.mesh), reader="op", operator="op")
    async with serving(keys, Options(store=tmp_path / "page")) as address, httpx.AsyncClient() as browser:
        entry = await browser.get(address, follow_redirects=True)
        shown = await browser.get(str(entry.url.join(f"/requests/{REQUEST}")))
        assert SAID in shown.text
        pages = [entry.text]

        async def is_said() -> bool:
            pages.append((await browser.get(str(entry.url.join("/requests")))).text)
            return SAID in pages[-1]

        await eventually(is_said)
        assert not NEVER.search(shown.text + pages[-1])


# --- mesh dev --------------------------------------------------------------------------------------


async def test_mesh_dev_keeps_the_store_and_says_where_it_is_and_what_to_do(tmp_path: Path) -> None:
    folder = desk(tmp_path)
    with folder.running("dev", "--port", 0, until=READY) as dev:
        running = running_dev(tmp_path)
        assert running is not None
        seed = seed_file(running.keys, "guard").read_text()
        async with await connect(running.url, name="guard", seed=seed) as guard:
            await put(JetStreamLog(guard))
        dev.end(signal.SIGINT)
    log = tmp_path / ".mesh" / "store" / "jetstream" / "CORE" / "streams" / "LOG"
    before = sorted((log / "msgs").iterdir())
    done = folder.process("dev", "--port", 0)
    assert done.status != 0
    assert SAID in done.err
    assert f"{tmp_path / '.mesh' / 'store'} is left as it is" in done.err
    assert "move it away" in done.err
    assert not NEVER.search(done.err)
    assert sorted((log / "msgs").iterdir()) == before
    (tmp_path / ".mesh" / "store").rename(tmp_path / ".mesh" / "store-form-1")
    with folder.running("dev", "--port", 0, until=READY) as dev:
        assert folder.process("request", "ls").status == 0
        dev.end(signal.SIGINT)
