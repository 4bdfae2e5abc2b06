"""Live output: what a turn shows while it works, over core NATS and never through the log.

A note is a hint for display, like every note on core NATS: it may be lost, nothing rests on it, and what a
model says in it is not withheld by labels. It goes to the request's own client. Nobody waits for it: a turn
is not slowed by who listens, nor by who does not.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import msgspec

from mesh.service.logs import get_logger
from protocol.wire import codec
from protocol.wire.ids import submitter_of
from protocol.wire.notices import LiveNote, What
from protocol.wire.subjects import live

_log = get_logger(__name__)

TEXT_S = 0.05
"""Text goes out at most this often: pieces that come faster are put together."""
MOST_A_SECOND = 100
"""Notes of one round; what is beyond is not sent, and the numbers of the others show the gap."""
NOTE_CHARS = 4_000
MOST_CHARS = 16 * NOTE_CHARS
"""Of text that waits to go out; what a model says beyond that at once is not shown."""
_NAME_CHARS = 128

Send = Callable[[str, bytes], object]
"""Publishes (subject, data) and waits for nothing."""


def read_note(data: bytes) -> LiveNote | None:
    """Return a note; None for what is none, since any agent can put anything here."""
    return codec.readable(data, LiveNote)


class LiveOutput:
    """What one run of a round says. Its methods return at once and raise nothing.

    Args:
        send: None for a turn that nobody can hear.
    """

    def __init__(self, send: Send | None, *, request: str, agent: str, turn: str, round_: int) -> None:
        self._turn, self._round = turn, round_
        try:
            self._subject = "" if send is None else live(submitter_of(request), request, agent, turn)
        except ValueError:  # an id that is none: nobody can listen there
            self._subject = ""
        self._send = send if self._subject else None
        self._n = 0
        self._second, self._sent = 0, 0
        self._text: list[str] = []
        self._chars = 0
        self._last_text = 0.0
        """When text went out (monotonic seconds)."""
        self._timer: asyncio.TimerHandle | None = None

    def began(self) -> None:
        """The round's code begins."""
        self._say("began")

    def hear(self, piece: str | None) -> None:
        """A model has said another piece of its reply; None: all that it said of it is void."""
        if self._send is None:
            return
        if piece is None:
            self._text.clear()
            self._chars = 0
            self._say("text", again=True)
            return
        if self._chars < MOST_CHARS:
            self._text.append(piece[: MOST_CHARS - self._chars])
            self._chars += len(self._text[-1])
        if self._timer is None:
            with contextlib.suppress(RuntimeError):  # without a loop it goes out with the next note
                wait_s = self._last_text + TEXT_S - time.monotonic()
                self._timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._flush)

    @contextlib.contextmanager
    def doing(self, what: What, name: str) -> Iterator[None]:
        """Say that something is called, and how that ends; not with what."""
        self._say("step", what=what, name=name[:_NAME_CHARS], state="called")
        state = "failed"
        try:
            yield
            state = "returned"
        finally:
            self._say("step", what=what, name=name[:_NAME_CHARS], state=state)

    def proposed(self, move: str, to: str = "") -> None:
        """The round came to a move, which is proposed next."""
        self._say("ended", move=move[:_NAME_CHARS], to=to[:_NAME_CHARS])

    def stopped(self, code: str) -> None:
        """The round came to no move."""
        self._say("ended", failed=code[:_NAME_CHARS])

    def close(self) -> None:
        """Send what waits. Idempotent."""
        self._flush()

    def _say(self, kind: str, **said: object) -> None:
        if self._send is None:
            return
        self._flush()
        self._publish(kind, said)

    def _flush(self) -> None:
        """Send the text that waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        text = "".join(self._text)
        self._text.clear()
        self._chars = 0
        for at in range(0, len(text), NOTE_CHARS):
            self._last_text = time.monotonic()
            self._publish("text", {"text": text[at : at + NOTE_CHARS]})

    def _publish(self, kind: str, said: dict[str, object]) -> None:
        n, self._n = self._n, self._n + 1
        if not self._has_room() and kind != "ended":
            return
        try:
            note = LiveNote(
                v=1,
                turn=self._turn,
                round=self._round,
                n=n,
                at=time.time_ns() // 1000,
                kind=kind,  # type: ignore[arg-type]  # one of them
                **said,  # type: ignore[arg-type]  # fields of a note
            )
            assert self._send is not None
            self._send(self._subject, msgspec.json.encode(note))
        except Exception as error:  # whatever it is, no turn fails of it
            _log.debug("live_note_lost", error=type(error).__name__)

    def _has_room(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._sent = second, 0
        self._sent += 1
        return self._sent <= MOST_A_SECOND


SILENT = LiveOutput(None, request="", agent="", turn="", round_=0)
"""Of a turn that nobody can hear."""
