"""What `mesh send --follow` writes of live notes: what was lost between two of them shows."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from mesh.cli.waiting import Shown
from mesh.client.follow import AgentNote, Following, JournalStep
from protocol.wire.records import LiveNote, Record


def said(n: int, text: str, *, agent: str = "a", turn: str = "t", round_: int = 0) -> AgentNote:
    return AgentNote(agent, LiveNote(v=1, turn=turn, round=round_, n=n, at=n, kind="text", text=text))


def journaled(text: str) -> JournalStep:
    return JournalStep("a", "t", 0, Record(kind="model", name="m", at=1, nonce="n", value={"text": text}))


async def shown(capsys: pytest.CaptureFixture[str], *items: object) -> list[str]:
    async def feed() -> AsyncIterator[Any]:
        for item in items:
            yield item

    await Shown(told=True).until_the_end(cast("Following", feed()))
    return [line.strip() for line in capsys.readouterr().err.splitlines()]


async def test_a_gap_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert await shown(capsys, said(0, "It is "), said(1, "in "), said(4, "attic.")) == [
        "a: It is in",
        "…",
        "a: attic.",
    ]


async def test_what_was_missed_before_the_first_note_is_a_gap_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert await shown(capsys, said(3, "in the attic.")) == ["…", "a: in the attic."]


async def test_where_nothing_is_lost_there_is_no_gap(capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds and agents count for themselves, a new run counts from 0, a journal tells what was before."""
    lines = await shown(
        capsys,
        said(0, "one "),
        said(0, "two", agent="b", turn="u"),
        said(1, "three", agent="a"),
        said(0, "four", round_=1),
        said(0, "five"),
        said(1, " six"),
    )
    assert "…" not in lines
    assert await shown(capsys, journaled("told"), said(7, "live")) == [
        "a: [asks m]",
        "a: told",
        "a: live",
    ]


async def test_a_model_call_shows_though_its_note_was_missed_and_it_wrote_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await shown(capsys, journaled("")) == ["a: [asks m]"]
