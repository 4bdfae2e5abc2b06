"""A scene as mermaid's text of a sequence diagram (https://mermaid.js.org/syntax/sequenceDiagram.html)."""

from collections.abc import Iterator

from mesh.service.printable import counted, short
from mesh.ui.drawing.scene import GUARD, Row, Scene
from protocol.wire.ids import HUMAN

_WORDS = 100
_SAFE = frozenset(" .,:!?'()/-+=_°§€$äöüÄÖÜßéèàçñ") | frozenset(chr(code) for code in range(0x4E00, 0xA000))


def mermaid(told: Scene) -> str:
    """Return a whole scene, a line each; no stranger's name or text can end a line or begin a keyword."""
    return "\n".join(_lines(told)) + "\n"


def _lines(told: Scene) -> Iterator[str]:
    ids = {lane: f"p{place}" for place, lane in enumerate(told.lanes)}
    yield "sequenceDiagram"
    for lane, id_ in ids.items():
        kind = "actor" if lane in (told.client, HUMAN) else "participant"
        yield f"    {kind} {id_} as {_text('people' if lane == HUMAN else lane)}"
    for row in told.rows:
        yield f"    {_line(row, ids)}"


def _line(row: Row, ids: dict[str, str]) -> str:
    here = ids[row.lane]
    to = here if row.to is None else ids[row.to]
    first, last = next(iter(ids.values())), next(reversed(ids.values()))
    across = first if first == last else f"{first},{last}"
    who = f" by {row.who}" if row.who else ""
    match row.form:
        case "fold":
            said = f"the same {counted(row.cycle, 'row')}, {counted(row.times, 'time')} more"
            return f"Note over {across}: {_text(said)}"
        case "band":
            said = row.move if row.who == GUARD else f"{row.move} by {row.who or row.lane}"
            return f"Note over {across}: {_text(_joined(said, row.text))}"
        case "note":
            return f"Note over {here}: {_text(_joined(row.move + who, row.text or row.detail))}"
        case "broken":
            aimed = f" to {row.aim}" if row.aim else ""
            return f"{here}-x{to}: {_text(_joined(f'{row.move}{aimed} refused by {row.rule}', row.text))}"
        case "arrow":
            shaft = "-->>" if row.move in ("hand_back", "reply", "settle") else "->>"
            return f"{here}{shaft}{to}: {_text(_joined(row.move + who, row.text))}"


def _joined(move: str, text: str) -> str:
    return f"{move}: {text}" if text else move


def _text(text: str) -> str:
    """Return a text whose every character that mermaid or HTML could read otherwise is a character code."""
    line = short(text, _WORDS)
    coded = (
        char if (char.isascii() and char.isalnum()) or char in _SAFE else f"#{ord(char)};" for char in line
    )
    return "".join(coded) or " "
