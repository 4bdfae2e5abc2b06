"""The player: client and agents of many requests in one process, so that guard and server alone are measured.

It speaks over the admin's connection, which may publish in every name, and hears each event as it is stored.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import msgspec

from bench.place import CLIENT
from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from protocol.wire import codec
from protocol.wire.commands import Move, MoveProposed, Report, Submit
from protocol.wire.ids import NOBODY, RequestId, TurnId, request_id
from protocol.wire.subjects import parse_evt, prop

_PATIENCE_S = 120.0


class _Work(msgspec.Struct):
    turn: TurnId
    round: int = 0


class _Heard(msgspec.Struct):
    """What the player looks at in an event."""

    type: str
    work: _Work | None = None
    to: str = ""


_HEARD = msgspec.json.Decoder(_Heard)


class Player:
    """Plays requests on one mesh."""

    def __init__(self, admin: Bus) -> None:
        self._admin = admin
        self._inboxes: dict[str, asyncio.Queue[_Heard]] = {}
        self.events = 0
        """Events that were heard, those addressed to nobody among them."""

    def hear(self, message: Incoming) -> None:
        self.events += 1
        told = parse_evt(message.subject)
        if told.to != NOBODY and told.request in self._inboxes:
            self._inboxes[told.request].put_nowait(_HEARD.decode(message.data))

    async def open(self, submit: Submit) -> "Played":
        """Submit a request; return it once its first turn is open."""
        request = request_id(CLIENT, time.time_ns() // 1_000_000, os.urandom(10))
        self._inboxes[request] = asyncio.Queue()
        played = Played(self, request)
        await self._admin.publish_durable(prop(CLIENT, request), codec.encode(submit))
        await played.next()
        return played

    async def publish(self, sender: str, request: str, proposal: MoveProposed) -> None:
        await self._admin.publish_durable(prop(sender, request), codec.encode(proposal))

    async def heard(self, request: str) -> _Heard:
        async with asyncio.timeout(_PATIENCE_S):
            return await self._inboxes[request].get()

    def forget(self, request: str) -> None:
        del self._inboxes[request]

    async def play(self, submit: Submit, moves: Iterable[Move]) -> None:
        """Play one request to its end."""
        played = await self.open(submit)
        for move in moves:
            await played.move(move)
        self.forget(played.request)


class Played:
    """One request under way."""

    def __init__(self, player: Player, request: RequestId) -> None:
        self._player = player
        self.request = request
        self._turn: _Work | None = None
        self._holder = ""

    async def next(self) -> None:
        """Take the next event. Raises RuntimeError for one that no request here should bring."""
        event = await self._player.heard(self.request)
        if event.type not in ("request.opened", "handoff.admitted", "request.completed"):
            raise RuntimeError(f"{self.request}: {event.type}")
        self._turn, self._holder = event.work, event.to

    async def move(self, move: Move) -> None:
        """Let the holder propose a move; return once it is admitted."""
        turn = self._turn
        if turn is None:
            raise RuntimeError(f"{self.request} has ended")
        proposal = MoveProposed(turn=turn.turn, round=turn.round, move=move, report=Report())
        await self._player.publish(self._holder, self.request, proposal)
        await self.next()


@asynccontextmanager
async def player(admin: Bus) -> AsyncIterator[Player]:
    """Return a player that hears every event."""
    made = Player(admin)
    heard = await admin.subscribe("mesh.evt.*.*", made.hear)
    try:
        yield made
    finally:
        await heard.close()
