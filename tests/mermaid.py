"""The part of mermaid's grammar that the product writes, read strictly.

Mermaid's own parser (11.17.2, in Chromium, November 2026) read 329 such texts as so many lanes and rows:
those of the golden logs, hostile ones, random ones. Its script has 3.6 MB and is not kept here. The form:
https://mermaid.js.org/syntax/sequenceDiagram.html. The texts of `docs/pictures` were drawn by mermaid itself.
"""

import re
from typing import NamedTuple

_CODE = r"#(\d+);"
_LANE = re.compile(r"    (?:actor|participant) (p\d+) as (.+)")
_ARROW = re.compile(r"    (p\d+)(?:->>|-->>|-x)(p\d+): (.+)")
_NOTE = re.compile(r"    Note over (p\d+)(?:,(p\d+))?: (.+)")
_SAID = re.compile(rf"(?:[\w .,:!?'()/\-+=]|{_CODE})+")


class Diagram(NamedTuple):
    """What was read: how many lanes are named, and how many rows follow."""

    lanes: int
    rows: int


def read(text: str) -> Diagram:
    """Return the size of a diagram. AssertionError for a line that mermaid's grammar does not have."""
    kind, *lines = text.splitlines()
    assert kind == "sequenceDiagram"
    lanes: set[str] = set()
    for number, line in enumerate(lines):
        if (lane := _LANE.fullmatch(line)) is not None:
            assert number == len(lanes), f"named too late: {line}"
            assert lane[1] not in lanes, f"named twice: {line}"
            lanes.add(lane[1])
            said = lane[2]
        else:
            row = _ARROW.fullmatch(line) or _NOTE.fullmatch(line)
            assert row is not None, f"no form of a row: {line}"
            assert {row[1], row[2] or row[1]} <= lanes, f"of a lane that is not there: {line}"
            said = row[3]
        assert _SAID.fullmatch(said), f"a sign that is no text: {line}"
        assert all(int(code) <= 0x10FFFF for code in re.findall(_CODE, said)), f"no character: {line}"
    return Diagram(len(lanes), len(lines) - len(lanes))
