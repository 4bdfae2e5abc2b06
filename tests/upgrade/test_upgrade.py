"""An upgrade under way: guards and agents of two versions work in one mesh, in any order, and back."""

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import read_key
from mesh.bus.event_log import JetStreamLog
from mesh.client import Client
from mesh.local.server import EmbeddedServer
from mesh.ops import decisions
from mesh.replay.rejudge import rejudge
from protocol.wire.config import Policy, policy_hash
from tests.servers import PATIENCE_S, eventually
from tests.upgrade.versions import HERE, NotBuilt, Services, Version, built

pytestmark = pytest.mark.timeout(1800)  # a dozen processes are started, one after the other
AGENTS = ("front", "back")
KINDS = ("order", "order", "person")


class Desk(NamedTuple):
    """A mesh that was set up by the previous version."""

    home: Path
    server: EmbeddedServer
    services: Services
    ledger: Path

    async def connect(self, name: str) -> Bus:
        seed = read_key(self.home / "deployed" / "keys" / f"{name}.nk").seed
        return await connect(self.server.url, name=name, seed=seed)

    def mesh(self, version: Version, *arguments: str | Path, name: str = "admin") -> str:
        """Run a command of a version as a member; return what it says. AssertionError if it fails."""
        done = version.run(*arguments, folder=self.home, **self.member(name))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def member(self, name: str) -> dict[str, str]:
        return {
            "NATS_URL": self.server.url,
            "MESH_CREDENTIALS": str(self.home / "deployed" / "keys" / f"{name}.nk"),
        }

    async def set_up(self, version: Version) -> None:
        """Do what the docs say about an upgrade of the mesh itself: accounts, reload, the bus."""
        await asyncio.to_thread(self.mesh, version, "setup", "--out", "deployed")
        await self.server.reload((self.home / "deployed" / "accounts.conf").read_text())
        await asyncio.to_thread(self.mesh, version, "setup")


@pytest_asyncio.fixture
async def desk(before: Version, tmp_path: Path, ledger: Path) -> AsyncIterator[Desk]:
    home = tmp_path / "home"
    shutil.copytree(HERE / "desk", home)
    made = before.run("setup", "--out", "deployed", folder=home)
    assert made.returncode == 0, made.stdout + made.stderr
    accounts, admin = home / "deployed" / "accounts.conf", home / "deployed" / "keys" / "admin.nk"
    server = EmbeddedServer(
        accounts.read_text(), tmp_path / "store", sync_always=False, probe_seed=read_key(admin).seed
    )
    async with server:
        own = Desk(home, server, Services(home, server.url, ledger), ledger)
        own.mesh(before, "setup")
        try:
            yield own
        finally:
            await own.services.stop()


class Story:
    """Requests that are begun, and ended, while versions change around them."""

    def __init__(self, desk: Desk, app: Bus, ops: Bus) -> None:
        self._desk, self._ops = desk, ops
        self._client = Client(app, "app")
        self._numbers = itertools.count(1)
        self.begun: dict[str, str] = {}
        """The order of each request."""
        self.booked: dict[str, str] = {}
        """By order: the folder of the version whose agent has to have booked it."""
        self._open: list[tuple[str, str]] = []

    async def begin(self) -> None:
        """Begin a request of each kind: orders go to `back`, which does not run; a person has the other."""
        for kind in KINDS:
            order = f"o{next(self._numbers)}"
            request = str(await self._client.submit("an order", facts={"kind": kind, "order": order}))
            self.begun[request] = order
            self._open.append((request, kind))
        for request, kind in self._open:
            await self._reaches(request, "escalation.raised" if kind == "person" else "handoff.admitted")

    async def end(self, agents: Version) -> None:
        """Have everything that is open ended by agents of a version, and see that it came out right."""
        for request, kind in self._open:
            if kind == "person":
                await decisions.resolve(self._ops, request, by="kim", again=True, note="go on")
        for request, _ in self._open:
            outcome = await self._client.wait(request, timeout_s=PATIENCE_S)
            assert (outcome.status, outcome.answer) == ("completed", f"booked {self.begun[request]}")
            self.booked[self.begun[request]] = str(agents.folder)
        self._open.clear()

    async def _reaches(self, request: str, type_: str) -> None:
        log = JetStreamLog(self._ops, leader=False)

        async def there() -> bool:
            return any(json.loads(each.data)["type"] == type_ for each in await log.read(request))

        await eventually(there)


@pytest.mark.parametrize(
    "order", [("guard", AGENTS), (AGENTS, "guard")], ids=["guards-first", "agents-first"]
)
async def test_requests_that_an_upgrade_meets_end_as_they_should_and_so_on_the_way_back(
    desk: Desk, before: Version, now: Version, order: Sequence[str | tuple[str, ...]]
) -> None:
    first, second = ((each,) if isinstance(each, str) else each for each in order)
    await desk.services.put(before, "guard", "front")
    async with await desk.connect("app") as app, await desk.connect("ops") as ops:
        story = Story(desk, app, ops)
        agents = before
        for version, names in itertools.product((now, before), (first, second)):
            await story.begin()
            if (version, names) == (now, first):
                await desk.set_up(now)
            agents = version if "back" in names else agents
            await desk.services.put(version, *(name for name in names if name != "back"))
            await desk.services.put(agents, "back")
            await story.end(agents)
            await desk.services.stop("back")
        assert len(story.begun) == 12
        await _all_is_right(desk, before, now, story, ops)


async def _all_is_right(desk: Desk, before: Version, now: Version, story: Story, ops: Bus) -> None:
    """Each order is booked once, and both versions judge the whole log again and find nothing different."""
    lines = [line.split(" ") for line in desk.ledger.read_text().splitlines()]
    assert sorted(lines) == sorted([order, folder] for order, folder in story.booked.items())
    log = JetStreamLog(ops, leader=False)
    for request in story.begun:
        judged = rejudge([each.data for each in await log.read(request)])
        assert judged.same, judged
    for version in (before, now):
        said = await asyncio.to_thread(desk.mesh, version, "replay", "--all", name="audit")
        assert "; 0 differ" in said, said
        await asyncio.to_thread(desk.mesh, version, "log", "verify", name="audit")


# --- what a version cannot read -------------------------------------------------------------------


def newer(desk: Desk, now: Version, **changed: object) -> Path:
    """Return a file with the log of one request, whose events are as a later version might write them."""
    path = desk.home / "newer.jsonl"
    lines = [json.loads(line) for line in desk.mesh(now, "log", "export", "--all", name="audit").splitlines()]
    opened = next(line for line in lines if line["type"] == "request.opened")
    path.write_text("".join(json.dumps(line | (changed if line is opened else {})) + "\n" for line in lines))
    return path


async def test_a_log_of_a_newer_version_is_refused_by_name(desk: Desk, before: Version, now: Version) -> None:
    await desk.services.put(before, "guard", "front", "back")
    async with await desk.connect("app") as app, await desk.connect("ops") as ops:
        story = Story(desk, app, ops)
        await story.begin()
        await story.end(before)
    file = newer(desk, now, v=3)
    for version in (before, now):
        done = version.run("replay", file, folder=desk.home)
        assert done.returncode != 0
        assert "request.opened" in done.stdout + done.stderr
        assert "version 3" in done.stdout + done.stderr


async def test_a_policy_of_this_version_is_refused_by_name_by_the_one_before(
    desk: Desk, before: Version, now: Version
) -> None:
    await desk.services.put(now, "guard", "front", "back")
    async with await desk.connect("app") as app, await desk.connect("ops") as ops:
        story = Story(desk, app, ops)
        await story.begin()
        await story.end(now)
    policy = Policy(max_retries=2, human_deadline_s=60.0)
    file = newer(
        desk, now, policy={"max_retries": 2, "human_deadline_s": 60.0}, policy_hash=policy_hash(policy)
    )
    done = before.run("replay", file, folder=desk.home)
    assert done.returncode != 0
    assert "human_deadline_s" in done.stdout + done.stderr


def test_a_commit_that_the_clone_does_not_have_fails_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        NotBuilt, match=r"^the commit 0{40} of previous.txt is not in this clone: fetch its whole"
    ):
        built(tmp_path, "0" * 40)
