"""Samples held against what came of them."""

import asyncio
import shlex
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from mesh.errors import UsageWrong
from mesh.ops.delivery import Hook, delivering
from mesh.ops.rehearsal import Expected, Sample, is_sound, judged, read_samples, summary
from mesh.ops.watch import Alarm
from tests.servers import PATIENCE_S, ROOT
from tests.unit.cli.conftest import STORY

BODIES = STORY.read_bytes().splitlines()
PATH = ("triage", "billing", "triage", "refunds")


def sample(kind: str = "ruled", **expect: Any) -> Sample:
    expected = msgspec.convert({"status": "completed", **expect}, Expected)
    return Sample(id_hint="x", text="t", kind=kind, expect=expected)


def test_what_comes_out_as_expected_is_right() -> None:
    played = judged(sample(path=PATH, refused=["known_agent"], answer_has=["DONE."]), BODIES)
    assert played.wrong == ()
    assert played.outcome == "completed"
    assert played.verdict == "right"


@pytest.mark.parametrize(
    ("expect", "line"),
    [
        ({"status": "failed"}, "expected failed, came out completed"),
        ({"path": ["triage"]}, "expected path triage, was triage → billing → triage → refunds"),
        ({"refused": ["cycle"]}, "expected a refusal by cycle, had known_agent"),
        (
            {"answer_has": ["sorry"]},
            'expected an answer with \'sorry\', was \'{"refunded":12.5,"text":"Done."}\'',
        ),
    ],
)
def test_what_does_not_says_what_was_expected_and_what_came(expect: dict[str, Any], line: str) -> None:
    assert judged(sample(**expect), BODIES).wrong == (line,)


def test_what_people_have_to_decide_is_escalated() -> None:
    assert judged(sample(status="escalated"), BODIES[:17]).wrong == ()


def test_what_stops_half_way_is_unfinished_and_never_sound() -> None:
    for bodies in (BODIES[:4], []):
        played = judged(sample("paraphrase"), bodies)
        assert played.outcome == "unfinished"
        assert not is_sound([played])


def test_only_what_a_rule_was_written_for_has_to_be_right() -> None:
    assert is_sound([judged(sample("paraphrase", path=["triage"]), BODIES)])
    assert not is_sound([judged(sample("ruled", path=["triage"]), BODIES)])


def test_the_summary_counts() -> None:
    right, wrong = judged(sample(), BODIES), judged(sample("ambiguous", status="failed"), BODIES)
    counts = summary([right, wrong])
    assert (counts["requests"], counts["right"], counts["wrong"], counts["unfinished"]) == (2, 1, 1, 0)
    assert counts["by_kind"]["ambiguous"] == {"requests": 1, "right": 0, "wrong": 1, "unfinished": 0}
    assert counts["by_outcome"] == {"completed": 2}
    assert counts["refusals"] == {"known_agent": 2}
    assert counts["handoffs"] == 4


def test_the_sample_file_that_ships_can_be_read() -> None:
    assert len(read_samples(ROOT / "agents" / "support" / "requests.jsonl")) > 40


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text('\n{"text": 3}\n')
    with pytest.raises(UsageWrong, match="line 2"):
        read_samples(file)


def alarm(what: Literal["escalation", "ask", "dead_letter"], request: str) -> Alarm:
    return Alarm(what=what, at=1, request=request, agent="a", summary="s", reason="r", url="u")


async def test_what_waits_for_people_is_told_before_dead_letters(tmp_path: Path) -> None:
    told = tmp_path / "told"
    wrong = list[str]()
    hook = Hook(
        f'echo "$MESH_REQUEST" >> {shlex.quote(str(told))}', within_s=PATIENCE_S, on_trouble=wrong.append
    )
    async with asyncio.timeout(PATIENCE_S), delivering([hook]):
        for each in (
            alarm("dead_letter", "1"),
            alarm("dead_letter", "2"),
            alarm("ask", "3"),
            alarm("escalation", "4"),
        ):
            hook.add(each, None)
    assert told.read_text().split() == ["3", "4", "1", "2"]
    assert wrong == []
