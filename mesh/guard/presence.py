"""A guard's presence: it answers `$SRV.PING.guard` and `$SRV.STATS.guard`, in the shapes of NATS's ADR-32.

Nobody else can answer: no other role may listen there, and no member may be named `guard`. The answer needs
no entry that somebody would have to guard and to clean up.
"""

import datetime as dt
from functools import partial
from typing import Any

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.roles import GUARD, GUARD_ANSWERS
from mesh.errors import Denied
from mesh.guard.clock import ServerClock
from mesh.service.logs import get_logger

_log = get_logger(__name__)


class GuardPresence:
    """One guard's answers.

    Args:
        identity: the guard's.
    """

    def __init__(self, bus: Bus, identity: str, clock: ServerClock) -> None:
        self._bus = bus
        self._identity = identity
        self._clock = clock
        self._started = dt.datetime.now(dt.UTC)

    async def announce(self) -> None:
        """Begin to answer. A bus that is away is waited for."""
        for subject in GUARD_ANSWERS:
            try:
                await self._bus.retry_unavailable(partial(self._bus.subscribe, subject, self._answer))
            except Denied:  # a server whose accounts were written by an older version
                hint = "run `mesh setup`, and reload the server"
                _log.warning("clocks_not_shown", subject=subject, hint=hint)

    def _answer(self, message: Incoming) -> None:
        if message.reply:
            verb = message.subject.split(".")[1].lower()
            self._bus.send(message.reply, msgspec.json.encode(self._body(verb)))

    def _body(self, verb: str) -> dict[str, Any]:
        body = {
            "type": f"io.nats.micro.v1.{verb}_response",
            "name": GUARD,
            "id": self._identity,
            "version": "0.0.0",
            "metadata": {"role": GUARD},
        }
        if verb == "ping":
            return body
        started = self._started.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        endpoint = {"name": "clocks", "subject": GUARD_ANSWERS[-1], "data": self._clock.measured}
        return body | {"started": started, "endpoints": [endpoint]}
