"""The people of a drill: a client and an operator who do at once what they are asked for.

What they cannot do is evidence, and no error: the drill goes on. They settle an effect in doubt truthfully:
they look at what its journal and the world outside say, and only when the process that began it can do
nothing more.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.roles import GET
from mesh.bus.streams import steps_of
from mesh.errors import BusError, Denied
from protocol.wire import codec, events, subjects
from protocol.wire.commands import Cancel, Control, Freeze, ReplyToAsk, Resolve, Settle, Thaw
from protocol.wire.events import AnyEvent
from protocol.wire.ids import HUMAN
from tests.drill.evidence import Ordered, Undone
from tests.drill.ledger import deeds
from tests.drill.processes import Processes, now_us
from tests.drill.stories import Order, Story

_AGAIN_S = 0.1
_LOOK_S = 0.05
FROZEN_S = 4.0
"""Longer than an offer of the policy `brief-swarm` waits for a claim."""


class _Step(msgspec.Struct, frozen=True):
    """What a person reads in a step."""

    nonce: str = ""
    value: Any = None
    arguments: Any = None


class DoubtUnclear(Exception):
    """Nothing in the journal says what a doubt is about; the text is safe to show."""


class People:
    """Hears of every event and does what people would. `run` never ends by itself.

    Args:
        client, operator: their connections.
        ledger: the file that tools write to.
        processes: of the drill; guards are held for a while where a story says so.
        stories: by request, as far as they are sent.
        give_up: told of a request for which they could not do what they were asked for.
    """

    def __init__(
        self,
        client: Bus,
        operator: Bus,
        ledger: Path,
        processes: Processes,
        stories: Mapping[str, Story],
        give_up: Callable[[str], None] = lambda request: None,
    ) -> None:
        self._client, self._operator = client, operator
        self._ledger = ledger
        self._processes = processes
        self._stories = stories
        self._give_up = give_up
        self._agents: dict[str, str] = {}
        """By turn: whose it is."""
        self._journals: dict[str, str] = {}
        """By turn: under whose id its steps lie."""
        self._frozen: set[str] = set()
        self.orders: list[Ordered] = []
        """What was stored."""
        self.undone: list[Undone] = []
        self._to_do: asyncio.Queue[tuple[str, Coroutine[Any, Any, None]]] = asyncio.Queue()

    async def run(self) -> None:
        """Do what there is to do, all at once."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._try(*await self._to_do.get()))

    async def _try(self, request: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (
            Exception
        ) as error:  # whatever it is, the product or the drill is wrong, and the report says so
            why = str(error) if isinstance(error, DoubtUnclear) else type(error).__name__
            self.undone.append(Undone(request, why))
            self._give_up(request)

    def hear(self, event: AnyEvent) -> None:
        work = event.work
        if work is not None:
            self._agents[work.turn] = work.handoff.to_agent
            self._journals[work.turn] = work.journal_id
        match event:
            case events.RequestOpened():
                self._on_opened(event)
            case events.TaskOffered(again=False) if self._order_of(event) in ("freeze-offer", "thaw-offer"):
                self._freeze(event)
            case events.RequestFrozen() if self._order_of(event) == "thaw-offer":
                self._to_do.put_nowait((event.request, self._thaw_later(event)))
            case events.RequestFrozen():
                self._frozen.add(event.request)
            case events.MoveDeferred() | events.TurnFailed() if event.request in self._frozen:
                self._frozen.discard(event.request)
                self._order(self._operator, event, Thaw(id=f"thaw-{event.id}"))
            case events.TurnSuspended(ask=ask):
                who = self._operator if ask.to_agent == HUMAN else self._client
                reply = ReplyToAsk(id=f"reply-{event.id}", turn=event.turn, round=event.round, value=True)
                if self._order_of(event) == "away-ask":
                    self._to_do.put_nowait((event.request, self._reply_to_nobody(who, event, reply)))
                else:
                    self._order(who, event, reply)
            case events.EscalationRaised():
                self._order(self._operator, event, _resolution(event))
            case events.EffectDoubted():
                self._to_do.put_nowait((event.request, self._settle(event)))

    def _on_opened(self, event: events.RequestOpened) -> None:
        order = self._order_of(event)
        if order == "cancel":
            self._order(self._client, event, Cancel(id=f"cancel-{event.id}", reason="as the story says"))
        elif order == "freeze":
            self._freeze(event)

    def _order_of(self, event: AnyEvent) -> Order:
        story = self._stories.get(event.request)
        return "" if story is None else story.order

    def _freeze(self, event: AnyEvent) -> None:
        self._order(self._operator, event, Freeze(id=f"freeze-{event.id}", reason="as the story says"))

    async def _thaw_later(self, event: events.RequestFrozen) -> None:
        """Thaw a request after more than the time that its offers have."""
        await asyncio.sleep(FROZEN_S)
        await self._say(self._operator, event.request, Thaw(id=f"thaw-{event.id}"))

    async def _reply_to_nobody(self, who: Bus, event: events.TurnSuspended, reply: ReplyToAsk) -> None:
        """Reply while no guard runs, and let none run until the question has expired."""
        async with self._processes.guards_held():
            await self._say(who, event.request, reply)
            await asyncio.sleep(max(0.0, (event.expires_at - now_us()) / 1e6) + _AGAIN_S)

    def _order(self, who: Bus, event: AnyEvent, order: Control) -> None:
        self._to_do.put_nowait((event.request, self._say(who, event.request, order)))

    async def _say(self, who: Bus, request: str, order: Control) -> None:
        """Store an order, for as long as it takes: stored twice, it is obeyed once."""
        subject = subjects.ctl(who.name, request)
        while True:
            try:
                stored = await who.publish_durable(subject, codec.encode(order))
            except Denied:
                raise
            except BusError:
                await asyncio.sleep(_AGAIN_S)
            else:
                self.orders.append(Ordered(request, order.id, now_us(), stored.seq))
                return

    # --- doubts -----------------------------------------------------------------------------------

    async def _settle(self, event: events.EffectDoubted) -> None:
        done = await self._find_out(event)
        settle = Settle(
            id=f"settle-{event.id}",
            by="drill",
            turn=event.turn,
            round=event.round,
            outcome="not_done" if done is None else "done",
            result=done,
        )
        await self._say(self._operator, event.request, settle)

    async def _find_out(self, event: events.EffectDoubted) -> Any:
        """Return the result of an effect that happened; None if it did not and never will."""
        name = event.effect.step
        while True:
            intent = await self._step(event, name)
            result = await self._step(event, f"{name}d")
            if result is not None:
                return result.value  # whoever began it has come to its end after all
            if intent is None:
                raise DoubtUnclear(f"{name} is in doubt and has no intent")
            if not self._processes.is_alive(intent.nonce.partition("-")[0]):
                break
            await asyncio.sleep(_LOOK_S)
        which = (event.request, _call_in(intent, name), event.effect.action)
        for deed in deeds(self._ledger):
            if (deed.request, deed.call, deed.tool) == which:
                return {"call": deed.call}
        return None

    async def _step(self, event: events.EffectDoubted, name: str) -> _Step | None:
        agent, journal = self._agents[event.turn], self._journals[event.turn]
        subject = f"{GET}{steps_of(agent)}.{subjects.step(agent, event.request, journal, name)}"
        while True:
            try:
                found = await self._operator.request(subject)
            except Denied:
                raise
            except BusError:
                await asyncio.sleep(_AGAIN_S)
            else:
                return None if found.status == 404 else msgspec.json.decode(found.data, type=_Step)


def _call_in(intent: _Step, name: str) -> str:
    """Return which of its request's calls an intent is about, as its arguments say. Raises DoubtUnclear."""
    call = intent.arguments.get("call") if isinstance(intent.arguments, dict) else None
    if not isinstance(call, str):
        raise DoubtUnclear(f"{name} is in doubt, and its arguments do not say which call it is")
    return call


def _resolution(event: events.EscalationRaised) -> Resolve:
    """Return what a person makes of an escalation: what the script says, or else the same again."""
    said = {fact.key: fact.value for fact in event.work.handoff.facts}
    id_, turn = f"resolve-{event.id}", event.work.turn
    if said.get("person") == "answer":
        return Resolve(id=id_, by="drill", turn=turn, complete=True, answer={"done": said.get("done", [])})
    if event.reason != "asked":
        return Resolve(id=id_, by="drill", turn=turn, again=True)
    return Resolve(id=id_, by="drill", turn=turn, summary="go on")
