"""Which steps of a backup come back into an agent's journals, and what a restore adds to them.

Backups add up, and a stream of journals loses steps by age and by `mesh log trim-steps`. So a backup may have
more than the stream ever had at once. Journals are also copied after the log, so some steps are ahead of it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from mesh.bus.copying import WholeMessage
from mesh.bus.streams import steps_of
from mesh.ops.requeue import OpenRequests
from protocol.wire import codec, subjects
from protocol.wire.config import Fleet
from protocol.wire.ids import is_request_id, submitted_ms
from protocol.wire.records import FENCE, LostTime, Record

_MARK_BYTES = 512
"""What a lost time, or a turn that was there before it, takes at most in a stream of journals."""
_STEP_BYTES, _HEAD_BYTES = 30, 4
"""What nats-server 2.15 counts for each message besides its parts, and for one with headers."""
_FILLED = 0.75
"""How much of its limits a stream of journals may take again if its backup has outgrown them. It never drops
steps by itself: at its limit, agents could take none."""


class RestoredJournals:
    """The journals of one agent, as a restore writes them.

    If the backup has outgrown the stream, all steps of open requests come back, and the newest others.

    Args:
        stored: yields the backup's messages of the stream.
        config: the stream's configuration.
        most: how many messages the backup has of it, and an upper bound of their bytes.
    """

    def __init__(
        self,
        stored: Callable[[], Iterable[WholeMessage]],
        config: Mapping[str, Any],
        open_requests: OpenRequests,
        fleet: Fleet,
        most: tuple[int, int],
    ) -> None:
        self._stored, self._config, self._open, self._fleet = stored, config, open_requests, fleet
        self._agent = str(config["name"]).removeprefix(steps_of(""))
        self._turns = open_requests.turns(self._agent)
        """Request and turn of each turn in the backup's open requests."""
        self._from_seq = 0
        """Older steps are left out, except for those of open requests."""
        self.left_out = 0
        """How many steps have no room in the stream."""
        self._count, self._bytes = most
        self._fit()

    @property
    def limits(self) -> dict[str, int]:
        """Limits of the stream with room for what is kept and added, even if it was full."""
        added, needed = self._added, {"max_msgs": self._count, "max_bytes": self._bytes + 1}
        limits = {name: int(self._config.get(name, -1)) for name in added}
        return {
            name: max(limit, needed[name]) + added[name] if limit > 0 else limit
            for name, limit in limits.items()
        }

    def steps(self, lost: LostTime | None) -> Iterator[WholeMessage]:
        """Yield the agent's steps, then the lost time, and which of its turns were there before.

        The lost time covers that of earlier restores. A turn that began after one of these was not there
        before it, so no turn of an older request is added then: those that were are among the steps.
        """
        subject, older_than = subjects.lost_time(self._agent), 0
        for message in self._as_of_the_log():
            if message.seq < self._from_seq and not self._is_needed(message):
                continue
            if message.subject != subject:
                yield message
            elif (before := codec.readable(message.data, LostTime)) is not None:
                older_than = before.until
                until = before.until if lost is None else max(before.until, lost.until)
                since = before.since if lost is None else min(before.since, lost.since)
                lost = LostTime(since=since, until=until)
        if lost is None:
            return
        yield WholeMessage(0, subject, {}, msgspec.json.encode(lost))
        for request, turn in sorted(self._turns):
            if submitted_ms(request) * 1000 >= older_than:
                known = subjects.step(self._agent, request, turn, subjects.KNOWN)
                yield WholeMessage(0, known, {}, b"{}")

    def _as_of_the_log(self) -> Iterator[WholeMessage]:
        """Yield the steps, without what only later rounds than the log's could have written.

        A fence by a round that the log does not have would stop the round that comes again, and steps of such
        a round would be taken for those of the one that now gets its number. This also holds for requests
        that the log does not have, if they are young enough to be submitted again.
        """
        oldest_ms = (time.time() - self._fleet.log_max_age_s / 4) * 1000

        def comes_again(request: str) -> bool:
            if request in self._open:
                return True
            if self._open.knows(request) or not is_request_id(request):
                return False
            return submitted_ms(request) >= oldest_ms

        for message in self._stored():
            *_, request, turn, name = message.subject.split(".")
            round_ = name.partition("-")[0]
            if round_.isdecimal() and comes_again(request):
                newest = self._open.newest_round(request, turn)
                if int(round_) > newest or (int(round_) == newest and _is_fence(message.data)):
                    continue
            yield message

    # --- what fits --------------------------------------------------------------------------------

    def _fit(self) -> None:
        """Leave out the oldest steps that need not be there, if the stream has no room for all."""
        most = {name: int(self._config.get(name, -1)) for name in self._added}
        if self._fits(most):  # without reading them
            return
        sizes = [(each.seq, _size(each), self._is_needed(each)) for each in self._as_of_the_log()]
        self._count, self._bytes = len(sizes), sum(size for _, size, _ in sizes)
        if self._fits(most):  # it is kept whole, be the stream full or not
            return
        most = {
            name: max(1, int(limit * _FILLED) - self._added[name])
            for name, limit in most.items()
            if limit > 0
        }
        for seq, size, is_needed in sizes:
            if self._fits(most):
                break
            self._from_seq = seq + 1
            if not is_needed:
                self._count, self._bytes = self._count - 1, self._bytes - size
                self.left_out += 1

    @property
    def _added(self) -> dict[str, int]:
        """What a restore adds at most, by the limit that it counts for."""
        marks = 1 + len(self._turns)
        return {"max_msgs": marks, "max_bytes": marks * _MARK_BYTES}

    def _fits(self, most: Mapping[str, int]) -> bool:
        within = {"max_msgs": self._count, "max_bytes": self._bytes + 1}  # the last byte is refused
        return all(within[name] <= limit for name, limit in most.items() if limit > 0)

    def _is_needed(self, step: WholeMessage) -> bool:
        """Return True if a step may not be left out: of an open request, or an earlier lost time."""
        request = step.subject.split(".")[3]
        return request in self._open or step.subject == subjects.lost_time(self._agent)


def _size(message: WholeMessage) -> int:
    """Return how many bytes of a stream's limit a message takes."""
    size = _STEP_BYTES + len(message.subject.encode()) + len(message.data)
    if not message.headers:
        return size
    lines = "".join(f"{name}: {value}\r\n" for name, value in message.headers.items())
    return size + _HEAD_BYTES + len(f"NATS/1.0\r\n{lines}\r\n".encode())


def _is_fence(body: bytes) -> bool:
    record = codec.readable(body, Record)
    return record is not None and record.kind == FENCE
