"""An actor: an agent of a test, which says what the test tells it to."""

from mesh.agent._instance import Presence
from mesh.agent.definition import Agent
from mesh.bus.connection import Bus
from mesh.bus.consumer import Message, Puller
from mesh.bus.request_mux import PubAck
from mesh.bus.streams import inbox_consumer
from protocol.wire import codec, subjects
from protocol.wire.commands import MoveProposed, Proposal, Report
from protocol.wire.event_parts import Assignment
from protocol.wire.events import AnyEvent
from protocol.wire.ids import RequestId, submitted_ms
from protocol.wire.moves import Move
from tests.servers import PATIENCE_S, until


class Actor:
    """An agent that does as the test tells it, under its own credentials and through its own inbox.

    Args:
        since_ms: when the test began, UTC ms.
    """

    def __init__(self, bus: Bus, name: str, since_ms: int) -> None:
        self.bus = bus
        self.name = name
        self.got: dict[str, list[AnyEvent]] = {}
        self._since_ms = since_ms
        self._puller = Puller(bus, "LOG", inbox_consumer(name), self._take, slots=64, expires_s=4.0)
        self._presence = Presence(bus, Agent(name, _nobody), "actor")

    async def start(self) -> None:
        await self._puller.start()

    async def announce(self) -> None:
        """Be there for a guard that asks."""
        await self._presence.announce()

    async def close(self) -> None:
        await self._puller.close()

    async def _take(self, message: Message) -> None:
        event = codec.decode_event(message.data)
        self.got.setdefault(event.request, []).append(event)
        message.ack()

    async def first(self) -> RequestId:
        """Return the first request that was submitted in this test; the inbox may hold one that is older."""

        def new() -> list[str]:
            return [request for request in self.got if submitted_ms(request) >= self._since_ms]

        await until(lambda: bool(new()), PATIENCE_S)
        return RequestId(new()[0])

    async def work(self, request: str, *, round_: int = 0, nth: int = 0) -> Assignment:
        """Return what the agent was given to do: the `nth` turn's `round_`, counted from 0."""

        def given() -> list[Assignment]:
            works = [event.work for event in self.got.get(request, ())]
            turns = list(dict.fromkeys(work.turn for work in works if work is not None))
            return [
                work
                for work in works
                if work is not None and work.round == round_ and work.turn in turns[nth : nth + 1]
            ]

        await until(lambda: bool(given()), PATIENCE_S)
        return given()[-1]

    async def propose(
        self, request: str, work: Assignment, move: Move, *, report: Report | None = None, times: int = 1
    ) -> PubAck:
        """Publish a move for a round."""
        proposal = MoveProposed(turn=work.turn, round=work.round, move=move, report=report or work.reported)
        for _ in range(times - 1):
            await self.say(request, proposal)
        return await self.say(request, proposal)

    async def say(self, request: str, proposal: Proposal) -> PubAck:
        return await self.bus.publish_durable(subjects.prop(self.name, request), codec.encode(proposal))


async def _nobody(turn: object) -> Move:
    raise AssertionError("an actor's handler never runs")
