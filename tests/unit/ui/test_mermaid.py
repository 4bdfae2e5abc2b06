"""The reader that judges every diagram in the tests notices what mermaid would not read."""

import pytest

from tests.mermaid import Diagram, read

SOUND = "sequenceDiagram\n    actor p0 as app\n    participant p1 as front #8212; desk\n    p0->>p1: submit\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("p0->>p1", "p0->>p2"),
        ("p0->>p1", "p0=>>p1"),
        ("submit", "submit; end"),
        ("submit", "<b>"),
        ("submit", ""),
        ("#8212;", "#9999999;"),
        ("#8212;", "#8212"),
        ("participant p1", "participant p0"),
        ("participant p1", "participant end"),
        ("submit\n", "submit\n    participant p2 as late\n"),
        ("submit\n", "submit\n    forged\n"),
    ],
)
def test_a_text_with_one_fault_is_no_diagram(before: str, after: str) -> None:
    assert read(SOUND) == Diagram(lanes=2, rows=1)
    broken = SOUND.replace(before, after, 1)
    assert broken != SOUND
    with pytest.raises(AssertionError):
        read(broken)
