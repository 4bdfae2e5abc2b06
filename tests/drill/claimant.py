"""An agent that the drill plays itself, so that claims come exactly when they are dangerous.

The fleet's own agents claim an offer as soon as they see it. This one claims an offer that another agent has
just been given, and an offer whose request is frozen, was frozen, or has no guard at the moment; and what
comes to it alone, since nobody has claimed it. It does the work that it is given at once.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from typing import Any

from mesh.agent._instance import Presence
from mesh.bus.connection import Bus
from mesh.errors import BusError, Denied
from protocol.wire import codec, events, subjects
from protocol.wire.commands import MoveProposed, OfferClaimed, Proposal
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Fact
from protocol.wire.moves import Deliver
from tests.drill.agents import claimant
from tests.drill.evidence import Claimed
from tests.drill.fleet import RARE
from tests.drill.processes import Processes, now_us
from tests.drill.stories import Story

NAME = claimant.name
_AGAIN_S = 0.1


class Claimant:
    """Hears every event and claims where a story wants it. `run` never ends by itself.

    Args:
        bus: the connection of the agent `NAME`.
        processes: where the guards are held for a while.
        stories: by request, as far as they are sent.
    """

    def __init__(self, bus: Bus, processes: Processes, stories: Mapping[str, Story]) -> None:
        self._bus = bus
        self._processes = processes
        self._stories = stories
        self._offers: dict[tuple[str, str, str], events.TaskOffered] = {}
        """By request, lead and task: the newest offer."""
        self.claims: list[Claimed] = []
        """What was stored."""
        self._to_do: asyncio.Queue[Coroutine[Any, Any, None]] = asyncio.Queue()

    async def run(self) -> None:
        """Answer pings, so that the agent counts as served, and do what there is to do, all at once."""
        await Presence(self._bus, claimant, "drill").announce()
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(await self._to_do.get())

    def hear(self, event: AnyEvent) -> None:
        story = self._stories.get(event.request)
        if story is None:
            return
        match event:
            case events.TaskOffered(to=to) if to == NAME:
                self._to_do.put_nowait(self._claim(event))
            case events.TaskOffered(again=False):
                self._offers[event.request, event.lead, event.name] = event
                if story.order == "away-offer":
                    self._to_do.put_nowait(self._claim(event, away=True))
            case events.RequestFrozen() if story.order == "freeze-offer":
                self._claim_all(event.request)
            case events.RequestThawed() if story.order == "thaw-offer":
                self._claim_all(event.request)
            case events.TaskOpened(to=to) if to == NAME:
                self._to_do.put_nowait(self._deliver(event))
            case events.TaskOpened() if event.grounds is not None:  # another agent's claim
                self._to_do.put_nowait(self._claim(self._offers[event.request, event.lead, event.name]))
            case events.TaskDelivered(sender=sender) if sender == NAME:  # it may have another now
                self._claim_all(event.request)

    def _claim_all(self, request: str) -> None:
        """Claim what this request has offered to the claimant."""
        for offer in self._offers.values():
            if offer.request == request and offer.intent == RARE:
                self._to_do.put_nowait(self._claim(offer))

    async def _claim(self, offer: events.TaskOffered, *, away: bool = False) -> None:
        """Store a claim. With `away`, let no guard run until the time to claim is over."""
        hold = self._processes.guards_held() if away else contextlib.nullcontext()
        async with hold:
            claim = OfferClaimed(turn=offer.offer.turn, round=0)
            await self._say(offer.request, claim)
            self.claims.append(Claimed(offer.request, offer.offer.turn, now_us()))
            if away:
                await asyncio.sleep(max(0.0, (offer.claim_by - now_us()) / 1e6) + _AGAIN_S)

    async def _deliver(self, event: events.TaskOpened) -> None:
        done = Deliver(summary="as the drill says", facts=(Fact(key="done", value=[]),))
        await self._say(event.request, MoveProposed(turn=event.work.turn, round=0, move=done))

    async def _say(self, request: str, proposal: Proposal) -> None:
        """Store a proposal, for as long as it takes: stored twice, it counts once."""
        while True:
            try:
                await self._bus.publish_durable(subjects.prop(NAME, request), codec.encode(proposal))
            except Denied:
                raise
            except BusError:
                await asyncio.sleep(_AGAIN_S)
            else:
                return
