"""An operator's terminal beside a stage: commands as a person gives them, under their own credentials."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from mesh.bus.stores import JetStreamSteps
from protocol.wire import events
from protocol.wire.commands import Doubt, Report, ReportInDoubt, Usage
from protocol.wire.event_parts import Assignment
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Delegate, Deliver, Escalate, Task
from protocol.wire.records import Record
from tests.guard.stage import Stage, seed_directory
from tests.system.terminal import Finished, Folder, Running


class Office:
    """Commands against a stage's server, run beside it."""

    def __init__(self, stage: Stage, path: Path) -> None:
        self.stage = stage
        self.folder = Folder(path)

    def credentials(self, name: str) -> dict[str, str]:
        seed = seed_directory(self.stage.mesh) / f"{name}.nk"
        return {"NATS_URL": self.stage.mesh.url, "MESH_NAME": name, "MESH_CREDENTIALS": str(seed)}

    async def mesh(self, *arguments: object, who: str = "op") -> Finished:
        """Give a command as `who` and return what came of it."""
        return await asyncio.to_thread(self.folder.mesh, *arguments, **self.credentials(who))

    async def process(self, *arguments: object, who: str = "op") -> Finished:
        """The same, as a process of its own."""
        return await asyncio.to_thread(self.folder.process, *arguments, **self.credentials(who))

    async def typed(self, said: str, *arguments: object, who: str = "op") -> Finished:
        """The same, at a terminal at which `said` is typed."""
        return await asyncio.to_thread(self.folder.typed, said, *arguments, **self.credentials(who))

    async def screen(self, *arguments: object, who: str = "op", **added: str) -> str:
        """Give a command whose output is a terminal; return everything that the terminal got."""
        return await asyncio.to_thread(self.folder.screen, *arguments, **self.credentials(who), **added)

    @contextlib.asynccontextmanager
    async def running(self, *arguments: object, until: str, who: str = "op") -> AsyncIterator[Running]:
        """Start a command that goes on, wait until it has said `until`, and kill it in the end."""
        started = self.folder.running(*arguments, until=until, **self.credentials(who))
        running = await asyncio.to_thread(started.__enter__)
        try:
            yield running
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)

    # --- requests that wait -----------------------------------------------------------------------

    async def begun(self, text: str = "hello", policy: str = "default") -> tuple[str, Assignment]:
        """Submit a request; return its id and what agent `a` is given to do."""
        request = await (await self.stage.client()).submit(text, policy=policy)
        return request, await (await self.stage.actor("a")).work(request)

    async def escalated(self, text: str = "hello", policy: str = "default") -> str:
        """Submit a request that its first agent gives to a person."""
        request, work = await self.begun(text, policy)
        await (await self.stage.actor("a")).propose(request, work, Escalate(summary="a person, please"))
        await self.stage.reaches(request, "escalation.raised")
        return request

    async def delegated(self) -> str:
        """Submit a request whose first agent delegates: `b` has its task, and nobody serves `e`."""
        request = await (await self.stage.client()).submit("find out", policy="tree")
        lead, worker = await self.stage.actor("a"), await self.stage.actor("b")
        tasks = (
            Task(name="one", summary="find one", to_agent=AgentName("b")),
            Task(name="two", summary="find two", to_agent=AgentName("e")),
        )
        report = Report(usage=Usage(nano_dollars=2_000_000, tokens=10, model_calls=1))
        await lead.propose(request, await lead.work(request), Delegate(tasks=tasks), report=report)
        await worker.propose(
            request, await worker.work(request), Deliver(summary="one is found"), report=report
        )
        await self.stage.reaches(request, "task.delivered")
        return request

    async def asked(self, whom: str = "human", **ask: object) -> str:
        """Submit a request whose first agent asks something."""
        request, work = await self.begun()
        move = Ask(to_agent=whom, question="which one?", **ask)  # type: ignore[arg-type]
        await (await self.stage.actor("a")).propose(request, work, move)
        await self.stage.reaches(request, "turn.suspended")
        return request

    async def doubted(self, text: str = "hello") -> str:
        """Submit a request whose first agent has an effect in doubt."""
        request, work = await self.begun(text)
        intent = Record(
            kind="intent", name="pay", nonce="n", at=1, key="k7", arguments={"cents": 1299}, secret=("card",)
        )
        steps = JetStreamSteps(await self.stage.bus("a"), "a")
        await steps.put(request, work.journal_id, "0-3", msgspec.json.encode(intent))
        doubt = ReportInDoubt(turn=work.turn, round=0, effect=Doubt(step="0-3", action="pay", key="k7"))
        await (await self.stage.actor("a")).say(request, doubt)
        await self.stage.reaches(request, "effect.doubted")
        return request

    async def last(self, request: str) -> events.AnyEvent:
        return (await self.stage.log(request))[-1]
