"""What a turn says while it works: put together, bounded, and never in the turn's way."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mesh.agent import _telemetry
from mesh.agent._steps import RoundKey
from mesh.agent._telemetry import (
    BEGAN_S,
    FEW_A_SECOND,
    FEW_OF_A_ROUND,
    MOST_A_SECOND,
    MOST_CHARS,
    NOTE_CHARS,
    SILENT,
    SOON_S,
    TEXT_S,
    LiveOutput,
    SecondCount,
)
from mesh.tasks import Alarms
from protocol.wire import codec
from protocol.wire.commands import Failure, MoveProposed, ReportFailure
from protocol.wire.ids import AgentName, TurnId
from protocol.wire.moves import Complete, Move, Transfer, UnknownMove
from protocol.wire.records import LiveNote
from tests.servers import until

REQUEST = "c1_01ARZ3NDEKTSV4RRFFQ69G5FAV"


class Sent:
    """Where notes go."""

    def __init__(self) -> None:
        self.subjects: set[str] = set()
        self.notes: list[LiveNote] = []

    def __call__(self, subject: str, data: bytes) -> bool:
        note = codec.readable(data, LiveNote)
        assert note is not None
        self.subjects.add(subject)
        self.notes.append(note)
        return True

    @property
    def text(self) -> str:
        return "".join(note.text for note in self.notes)


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands until it is set."""
    now = [1000.0]
    monkeypatch.setattr("mesh.agent._telemetry.time.monotonic", lambda: now[0])
    return lambda at: now.__setitem__(0, at)


def output(send: _telemetry.Send, of_all: SecondCount | None = None) -> LiveOutput:
    return LiveOutput(send, RoundKey("a", REQUEST, "t", 1), of_all=of_all)


def proposing(move: Move) -> MoveProposed:
    return MoveProposed(turn=TurnId("t"), round=1, move=move)


async def test_a_note_says_whose_it_is_by_its_subject_and_where_it_stands(sent: Sent) -> None:
    said = output(sent)
    said.began(Alarms(lambda: BEGAN_S))
    with said.doing("tool", "find"):
        pass
    said.ended(proposing(Transfer(to_agent=AgentName("b"), summary="go")))
    assert sent.subjects == {f"mesh.live.c1.{REQUEST}.a.t"}
    assert [(note.v, note.turn, note.round, note.n) for note in sent.notes] == [
        (1, "t", 1, n) for n in range(4)
    ]
    assert [(note.kind, note.what, note.name, note.state, note.move, note.to) for note in sent.notes] == [
        ("began", "", "", "", "", ""),
        ("step", "tool", "find", "called", "", ""),
        ("step", "tool", "find", "returned", "", ""),
        ("ended", "", "", "", "transfer", "b"),
    ]


async def test_a_round_that_shows_nothing_is_shown_once_it_has_lasted_a_while_or_failed(sent: Sent) -> None:
    quick, long, failing = output(sent), output(sent), output(sent)
    quick.began(Alarms(lambda: BEGAN_S))
    quick.ended(proposing(Complete(answer="")))
    quick.close()
    long.began(Alarms(lambda: BEGAN_S))
    await until(lambda: len(sent.notes) == 1)
    long.ended(proposing(Complete(answer="")))
    failing.began(Alarms(lambda: BEGAN_S))
    failing.ended(ReportFailure(turn=TurnId("t"), round=1, error=Failure(code="bug")))
    assert [(note.kind, note.n) for note in sent.notes] == [("began", 0), ("ended", 1)] * 2


async def test_pieces_that_come_fast_go_out_together_and_in_their_order(sent: Sent) -> None:
    said = output(sent)
    for number in range(1000):
        said.hear(f"{number} ")
    said.ended(ReportFailure(turn=TurnId("t"), round=1, error=Failure(code="enough")))
    assert [note.kind for note in sent.notes] == ["text", "ended"]
    assert sent.text == "".join(f"{number} " for number in range(1000))


async def test_text_goes_out_by_itself(sent: Sent) -> None:
    said = output(sent)
    said.hear("one")
    await until(lambda: bool(sent.notes))
    assert sent.text == "one"


@pytest.mark.parametrize(
    ("own", "others", "waits_s"),
    [
        (0, 0, SOON_S),
        (FEW_OF_A_ROUND - 2, 0, SOON_S),
        (FEW_OF_A_ROUND - 1, 0, TEXT_S),
        (0, FEW_A_SECOND - 2, SOON_S),
        (0, FEW_A_SECOND - 1, TEXT_S),
    ],
)
async def test_text_waits_longer_after_text_where_many_notes_are_sent(
    sent: Sent, still: Callable[[float], None], own: int, others: int, waits_s: float
) -> None:
    asked: list[float] = []
    loop = asyncio.get_running_loop()
    usual = loop.call_later

    def later(delay_s: float, *rest: Any) -> asyncio.TimerHandle:
        asked.append(delay_s)
        return usual(3600, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", later)
        of_all = SecondCount()
        said = output(sent, of_all)
        still(5000.0)
        said.hear("one")
        said.close()
        for _ in range(own):
            said._show("step")  # whatever it shows: it is the number that counts
        for _ in range(others):
            of_all.add()
        still(5000.0 + SOON_S / 4)
        said.hear("two")
        said.hear("three")
        still(5001.0)
        said.close()
        said.hear("four")
    assert asked == [0.0, pytest.approx(waits_s - SOON_S / 4), pytest.approx(SOON_S)]
    said.close()
    assert [note.text for note in sent.notes if note.kind == "text"] == ["one", "twothree", "four"]


async def test_a_flood_is_cut_and_the_numbers_show_it(sent: Sent, still: Callable[[float], None]) -> None:
    said = output(sent)
    for _ in range(MOST_A_SECOND * 3):
        with said.doing("tool", "spin"):
            pass
    assert len(sent.notes) == MOST_A_SECOND
    still(1001.5)
    with said.doing("tool", "spin"):
        pass
    assert sent.notes[-1].n == MOST_A_SECOND * 6 + 1
    said.hear("x" * (MOST_CHARS * 2))
    said.close()
    assert max(len(note.text) for note in sent.notes) == NOTE_CHARS
    assert len(sent.text) == MOST_CHARS


async def test_the_end_is_said_even_after_a_flood(sent: Sent, still: Callable[[float], None]) -> None:
    said = output(sent)
    for _ in range(MOST_A_SECOND):
        with said.doing("tool", "spin"):
            pass
    said.ended(proposing(Complete(answer="")))
    assert sent.notes[-1].kind == "ended"


async def test_a_reply_that_begins_anew_makes_void_what_was_said(sent: Sent) -> None:
    said = output(sent)
    said.hear("half a")
    said.hear(None)
    said.hear("whole")
    said.close()
    assert [(note.text, note.again) for note in sent.notes] == [("", True), ("whole", False)]


async def test_nothing_of_it_fails_a_turn() -> None:
    def broken(subject: str, data: bytes) -> bool:
        raise OSError("no socket")

    for said in (output(broken), SILENT, LiveOutput(broken, RoundKey("*", "no id", "", 0))):
        said.began(Alarms(lambda: BEGAN_S))
        said.hear("text")
        said.hear(None)
        with pytest.raises(ValueError, match="own"), said.doing("tool", "t\ud800"):
            raise ValueError("the tool's own")
        said.ended(proposing(UnknownMove(name="\ud800")))
        said.close()


@pytest.mark.parametrize("data", [b"", b"null", b"{}", b"\xff", b"[" * 100_000, b'{"v":1,"kind":"shout"}'])
def test_what_is_no_note_is_none(data: bytes) -> None:
    assert codec.readable(data, LiveNote) is None
