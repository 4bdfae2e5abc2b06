"""The pages for operators run: each command is given where its section would give it, on one mesh."""

import asyncio
import logging
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from mesh.bus.reader import every
from mesh.cli.exits import Exit
from mesh.fleet.file import parse_fleet
from mesh.ops.archive import archive
from mesh.ops.dead_letters import STREAM
from mesh.testing import EmbeddedBus
from protocol.wire import events, subjects
from protocol.wire.commands import Doubt, Freeze, ReportInDoubt, Thaw
from protocol.wire.config import Policy
from protocol.wire.event_parts import Assignment
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Complete, Escalate, Move, Transfer
from protocol.wire.records import Card
from tests.docs.pages import blocks
from tests.docs.test_operating import PAGE, TYPED
from tests.guard.stage import Stage, staged
from tests.logs import plain_logs
from tests.system.office import Office
from tests.system.test_cli_webhook import SECRET, Receiver, receiving

pytestmark = pytest.mark.asyncio(loop_scope="module")
TIERS = next(block.text for block in blocks(PAGE) if block.language == "toml")
FLEET = parse_fleet(
    'name = "night"\nentry = "billing"\n[agents.billing]\n[agents.refunds]\n'
    "[clients.app]\n[operators.ops]\n[viewers.audit]\n" + TIERS
)
BUCKET = "s3://audit/shop"
POSTED = "https://hooks.example.com/mesh"


class Night(Office):
    """Requests in each state that the page speaks of."""

    async def given(self, text: str) -> tuple[str, Assignment]:
        client = await self.stage.client("app")
        request = await client.submit(text, conversation="C", facts={"voucher": "V-1"})
        return request, await (await self.stage.actor("billing")).work(request)

    async def open(self) -> str:
        return (await self.given("It goes in circles"))[0]

    async def moved(self, move: Move, reaches: str) -> str:
        request, work = await self.given("check the amount and pay it back")
        await (await self.stage.actor("billing")).propose(request, work, move)
        await self.stage.reaches(request, reaches)
        return request

    async def waiting(self) -> str:
        return await self.moved(Escalate(summary="check the amount"), "escalation.raised")

    async def frozen(self) -> str:
        request = await self.open()
        await self.stage.control(request, Freeze(id="f"), "ops")
        await self.stage.reaches(request, "request.frozen")
        return request

    async def asked(self, whom: str = "human", **ask: object) -> str:
        ask_ = Ask(to_agent=whom, question="Which one?", **ask)  # type: ignore[arg-type]
        return await self.moved(ask_, "turn.suspended")

    async def allowed(self) -> str:
        return await self.asked(schema={"type": "boolean"})

    async def put_back(self) -> str:
        return await self.asked("app")

    async def doubted(self, text: str = "pay it back") -> str:
        request, work = await self.given(text)
        doubt = ReportInDoubt(turn=work.turn, round=0, effect=Doubt(step="0-3", action="pay", key="k7"))
        await (await self.stage.actor("billing")).say(request, doubt)
        await self.stage.reaches(request, "effect.doubted")
        return request

    async def long(self) -> str:
        """A request whose event 7 is a handoff that was admitted, and that ended then."""
        request, work = await self.given("check the amount and pay it back")
        for number in range(3):
            await self.stage.control(request, Freeze(id=f"f{number}"), "ops")
            await self.stage.control(request, Thaw(id=f"t{number}"), "ops")
        await self.stage.reaches(request, "request.thawed", 3)
        give = Transfer(to_agent=AgentName("refunds"), summary="pay it back")
        await (await self.stage.actor("billing")).propose(request, work, give)
        refunds = await self.stage.actor("refunds")
        await refunds.propose(request, await refunds.work(request), Complete(answer="It is paid back."))
        await self.stage.reaches(request, "request.completed")
        assert isinstance((await self.stage.log(request))[7], events.HandoffAdmitted)
        return request

    async def forkable(self) -> str:
        """The same, of agents that keep what a fork says about effects."""
        for name in ("billing", "refunds"):
            card = Card(name=name, version="1", forks=True)
            await (await self.stage.bus(name, "card")).publish_durable(
                subjects.card(name), msgspec.json.encode(card)
            )
        return await self.long()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def night(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Night]:
    folder = tmp_path_factory.mktemp("night")
    for name in ("tighter", "a"):
        (folder / f"{name}.toml").write_text('topology = "supervised"\n')
    (folder / "b.toml").write_text("max_depth = 9\n")
    fewer = 'name = "night"\nentry = "billing"\n[agents.billing]\n[clients.app]\n[operators.ops]\n'
    (folder / "mesh.new.toml").write_text(fewer)
    (folder / "shop").mkdir()
    for name in ("billing", "refunds"):
        (folder / "shop" / f"{name}.py").write_text(
            "from mesh.agent import Turn, agent as defined\n\n\n"
            f'@defined(name="{name}", description="Answers")\n'
            'async def agent(turn: Turn):\n    return turn.complete("fixed")\n'
        )
    for name in ("page", "page-the-lead"):
        (folder / name).write_text('#!/bin/sh\necho "$@" >> paged\n')
        (folder / name).chmod(0o755)
    with plain_logs(logging.CRITICAL):
        async with EmbeddedBus(FLEET.fleet, tmp_path_factory.mktemp("mesh")) as mesh:
            async with mesh.connected_as("admin") as admin:
                for sla_s in (7200.0, 3600.0):
                    policy = Policy(escalation_sla_s=sla_s)
                    await admin.publish_durable(subjects.policy(policy.name), msgspec.json.encode(policy))
            async with staged(mesh, guards=1) as stage:
                night = Night(stage, folder)
                await stuck_letter(stage)
                (folder / "case.jsonl").write_text(
                    (await night.mesh("log", "export", await night.long(), who="ops")).out
                )
                week = await night.mesh(
                    "log", "export", "--all", "--with-steps", "--out", "week.jsonl", who="ops"
                )
                assert week.status == Exit.DONE, week
                yield night
            await mesh.server.kill()


async def stuck_letter(stage: Stage) -> None:
    """Have a proposal kept that the guard can decide when it comes again."""
    for guard in stage._guards:
        fleet = guard._context.fleet
        guard._context.fleet = msgspec.structs.replace(fleet, operators=())
        request = await (await stage.client("app")).submit("freeze me")
        await (await stage.actor("billing")).work(request)
        await stage.control(request, Freeze(id="x"), "ops")
        await stage.buried("not_allowed", request=request)
        guard._context.fleet = fleet


ON: dict[str, Callable[[Night], Awaitable[str]]] = {
    r"request (freeze|cancel) ": Night.open,
    r"request thaw ": Night.frozen,
    r"human (show|assign|resolve) ": Night.waiting,
    r"human reply .*--as app": Night.put_back,
    r"human reply ": Night.asked,
    r"human (approve|deny) ": Night.allowed,
    r"doubt settle ": Night.doubted,
    r"^mesh fork ": Night.forkable,
}
"""The request that a command's ID stands for; else one that has ended."""
FOUND = {
    r"^mesh doctor": Exit.FAILED,
    r"^mesh diff ID@": Exit.FAILED,
    r"^mesh replay .*--(policy|fleet)": Exit.FAILED,
    r"^mesh replay .*--agent": Exit.NOTHING_JUDGED,
    r"^mesh attach": Exit.NOTHING_JUDGED,
    r"^mesh restore": Exit.FAILED,
}
"""Commands that find something, and say so by their status: a backup, say, on a bus that is in use.

The agents of these requests are the test itself, which records no version: no round can be run again.
"""


@pytest.mark.parametrize("line", TYPED)
async def test_a_command_of_the_page_does_what_it_is_given_for(
    night: Night, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(line, comments=True)[1:]
    if any(word.partition("@")[0] == "ID" for word in words):
        kind = next((made for wanted, made in ON.items() if re.search(wanted, line)), Night.long)
        request = await kind(night)
        words = [re.sub(r"^ID(?=@|$)", request, word) for word in words]
    if "17" in words:
        last = await night.stage.last_seq(STREAM)
        words = [str(last) if word == "17" else word for word in words]
    if words[:2] == ["conf", "diff"]:
        kept = every(await night.stage.bus("admin"), "CONF", subjects.policy("default"))
        words = [*words[:2], *[str(each.seq) async for each in kept]]
    if BUCKET in line:
        words = await with_an_archive(night, words)
    who = next((name for name in ("app", "admin") if f"--as {name}" in line), "ops")
    wanted = next((status for found, status in FOUND.items() if re.search(found, line)), Exit.DONE)
    if "watch" in words and "human" in words:
        monkeypatch.setenv("MESH_WEBHOOK_SECRET", SECRET)
        await asyncio.to_thread(_watched, night, words, wanted)
    elif "rerun" in words:
        done = await night.typed("y\n", *words, who=who)
        assert done.status == wanted, done
        assert "mesh: effects get new keys: no tool can tell that they belong to the same work" in done.err
    else:
        done = await night.mesh(*words, who=who)
        assert done.status == wanted, done


async def with_an_archive(night: Night, words: list[str]) -> list[str]:
    """Return a command about an archive for one in a folder, which holds a request that ended today."""
    url, request = (night.folder.path / "archive").as_uri(), await night.long()
    made = await archive(await night.stage.bus("admin"), url, older_than_s=-3600)
    day = made.index.files[-1].day
    words = [re.sub(rf"^{BUCKET}/\d.*", f"{url}/{day}", word) for word in words]
    return [word.replace(f"{BUCKET}/ID", f"{url}/{request}").replace(BUCKET, url) for word in words]


async def test_what_a_request_waits_for_is_said_as_the_page_has_it(night: Night) -> None:
    (shown,) = (block.text for block in blocks(PAGE) if block.language == "text")
    said = (await night.mesh("request", "show", await night.open(), who="ops")).out.splitlines()[-1]
    when = r"\d{4}-\d\d-\d\dT[\d:.]+Z"
    assert re.sub(when, "then", said) == re.sub(when, "then", shown)


def _watched(night: Night, words: list[str], wanted: Exit) -> None:
    """Let a watch report the present state, which ends it."""
    paged = night.folder.path / "paged"
    paged.unlink(missing_ok=True)
    with receiving() as receiver:
        said = [receiver.url if word == POSTED else word for word in words]
        done = night.folder.process(*said, "--once", **night.credentials("ops"))
        assert done.status == wanted, done
        _check_told(receiver, paged, words)


def _check_told(receiver: Receiver, paged: Path, words: list[str]) -> None:
    if "--post" in words:
        assert receiver.got
    elif "--tier" not in words:  # nothing has been raised to the lead yet
        assert "escalation app_" in paged.read_text()
