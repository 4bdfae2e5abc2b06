"""Shares on the bus: the entries by which processes divide what a model may be asked."""

import asyncio
import random
import secrets
from collections.abc import Callable

import msgspec
import structlog

from mesh.bus.connection import Bus
from mesh.bus.kept import get
from mesh.bus.log import CONFLICTS
from mesh.errors import PASSING, BusError, PublishRefused
from protocol import documents, subjects
from protocol.documents import DocumentInvalid
from protocol.pace import PaceEntry

_log = structlog.get_logger(__name__)

STREAM = "PACE"
_TRIES = 10
_APART_S = 0.02
"""Times how often it was tried: by chance up to so long between two tries."""

Decide = Callable[[PaceEntry], PaceEntry | None]
"""Returns what an entry shall be; None to leave it. It may be called several times, the last one counts."""


class Shares:
    """One process's access to the entries.

    Args:
        bus: an agent's. It may go away: then nothing is changed, and the last grant ends by itself.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.name = f"{bus.name}-{secrets.token_hex(4)}"
        """The process's own, in the entries."""
        self._refused = False

    async def change(self, model: str, decide: Decide) -> bool:
        """Change a model's entry by compare-and-set. False if nothing was, or nobody knows.

        An entry that cannot be read counts as none, and is written over.
        """
        try:
            for tried in range(1, _TRIES + 1):
                if (changed := await self._try(model, decide)) is not None:
                    self._refused = False
                    return changed
                await asyncio.sleep(random.uniform(0, _APART_S * tried))
        except BusError as error:  # the connection tells what passes by itself
            if not isinstance(error, PASSING) and not self._refused:
                self._refused = True
                hint = "run `mesh setup`, and reload the server"
                _log.warning("pace_not_shared", model=model, code=error.code, detail=str(error), hint=hint)
        return False

    async def _try(self, model: str, decide: Decide) -> bool | None:
        """Return None where somebody else was first."""
        subject = subjects.pace(model)
        found = await get(self._bus, STREAM, subject)
        entry = PaceEntry()
        if found is not None:
            try:
                entry = documents.read_pace(found.data)
            except DocumentInvalid as invalid:
                _log.warning("pace_unreadable", model=model, seq=found.seq, reason=str(invalid))
        changed = decide(entry)
        if changed is None:
            return False
        after = {"Nats-Expected-Last-Subject-Sequence": str(0 if found is None else found.seq)}
        try:
            await self._bus.publish_durable(subject, msgspec.json.encode(changed), after)
        except PublishRefused as refused:
            if refused.err_code in CONFLICTS:
                return None
            raise
        return True
