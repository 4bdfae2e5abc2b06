"""What a guard tells of messages that came to nothing: dead letters, and notices to their senders."""

from collections.abc import Callable
from typing import Any

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.consumer import Message
from mesh.bus.roles import GUARD
from mesh.errors import PASSING, MeshError
from mesh.service import telemetry, tracing
from mesh.service.logs import get_logger
from protocol.domain.admission import Late, Rejected
from protocol.wire import codec, subjects
from protocol.wire.commands import Command
from protocol.wire.ids import NOBODY
from protocol.wire.notices import Ended, Notice, NoticeError, dead_letter

_log = get_logger(__name__)


class DeadLetters:
    """Writes them. `now` is UTC µs."""

    def __init__(self, bus: Bus, now: Callable[[], int]) -> None:
        self._bus = bus
        self._now = now
        self.dead = 0
        """How many dead letters it stored."""

    async def store(self, message: Message, rejection: Rejected) -> bool:
        """Keep a message that came to nothing and tell its sender; False if it could not be kept."""
        sender, request = _address(message.subject)
        letter = dead_letter(
            at=self._now(),
            by=GUARD,
            code=rejection.code,
            detail=rejection.detail,
            subject=message.subject,
            data=message.data,
            headers=message.headers,
            sender=sender,
            request=request,
            delivered=message.delivered,
        )
        try:
            await self._bus.publish_durable(subjects.dead_from(sender or NOBODY), msgspec.json.encode(letter))
        except PASSING:
            return False  # the bus has said it
        except MeshError as error:
            _log.warning("dead_letter_not_stored", code=error.code, subject=message.subject)
            return False
        self.dead += 1
        telemetry.dead_letters.add(1, {tracing.CODE: rejection.code, tracing.BY: GUARD})
        _log.warning("dead_letter", code=rejection.code, sender=sender, request=request)
        reason = NoticeError(code=rejection.code, detail=letter.detail)
        if sender:
            await self._notify(sender, request, error=reason, digest=codec.body_digest(message.data))
        return True

    async def tell_late(self, hearing: Command, late: Late) -> None:
        """Tell a sender that what it speaks for is over or decided."""
        ended = Ended(why=late.ended, turn=late.turn, round=late.round)
        await self._notify(hearing.sender, hearing.request, ended=ended, digest=hearing.digest)

    async def _notify(self, to: str, request: str, **said: Any) -> None:
        notice = Notice(request=request, **said)
        await self._bus.publish(subjects.note(to, request), msgspec.json.encode(notice))


def _address(subject: str) -> subjects.Addressed:
    """Return sender and request as far as a subject names them; a timer has no sender."""
    try:
        return subjects.parse_queued(subject)
    except ValueError:
        return subjects.Addressed("", subject.rpartition(".")[2])
