"""The scene of a request: a lane for each member, a row for each thing that happened.

A row is an entry of the timeline with its place. Repetitions are folded: a request that went in circles a
thousand times is as short as its circle. `mermaid` writes a scene as text.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from mesh.service.printable import counted, short
from protocol.views.timeline import Timeline, TimelineEntry, named
from protocol.wire.ids import HUMAN

Form = Literal["arrow", "broken", "note", "band", "fold"]
"""`arrow` passes between lanes, `broken` was refused, `note` happens on a lane, `band` to the whole request;
`fold` stands for rows that repeat those before it."""
State = Literal["working", "waiting", "failed", "doubt"]
"""What a holder does after a row."""

GUARD = "guard"
LONGEST_CYCLE = 8
"""Most rows of a repeated pattern: an arrow, a refusal and an answer for each of a few agents."""
_WORTH_FOLDING = 4
"""Fewest rows that a fold replaces: fewer are shown."""


class SceneRow(msgspec.Struct, frozen=True, kw_only=True):
    """One event, and where it happened."""

    seq: int
    """The number of the event that its link leads to."""
    first: int
    """Number of its first event: an event that withholds facts is shown with the next one."""
    last: int
    """Number of the last event that it stands for; except in a fold, equal to `seq`."""
    at: int
    """UTC µs."""
    form: Form
    move: str
    lane: str
    """Where it begins."""
    to: str | None = None
    """Where it ends; None for the same lane, or for nowhere."""
    aim: str | None = None
    """The target of a refused move, if that is no lane."""
    who: str = ""
    """Who did it, if that is not the lane's name: a person, an operator, the guard."""
    text: str = ""
    rule: str | None = None
    detail: str = ""
    held: tuple[tuple[str, State], ...] = ()
    """By lane: who holds work after this row, and what they do with it."""
    cycle: int = 0
    """How many rows a fold repeats."""
    times: int = 0
    """How often a fold repeats them."""

    @property
    def across(self) -> str:
        """A fold, or an event of the whole request, in words."""
        if self.form == "fold":
            return f"the same {counted(self.cycle, 'row')}, {counted(self.times, 'time')} more"
        return self.move if self.who == GUARD else f"{self.move} by {self.who or self.lane}"


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """A request as lanes and rows."""

    lanes: tuple[str, ...]
    """The client, the agents in the order in which they held the work, then `human`."""
    everyone: tuple[str, ...]
    """The lanes of the whole request: a name's position gives it its colour in every part."""
    client: str
    began: int
    """UTC µs of the first event."""
    rows: tuple[SceneRow, ...]

    def part(self, number: int, size: int) -> "Scene":
        """Return the rows of one part, and the lanes that these touch."""
        rows = self.rows[number * size : (number + 1) * size]
        touched = {name for row in rows for name in (row.lane, row.to, *(lane for lane, _ in row.held))}
        lanes = tuple(lane for lane in self.lanes if lane in touched)
        return msgspec.structs.replace(self, lanes=lanes or self.lanes[:1], rows=rows)


def scene(view: Timeline, *, folded: bool = True) -> Scene:
    """Return the scene of a request.

    Args:
        folded: True to replace rows that repeat those before them by a fold.
    """
    rows = tuple(_rows(view))
    agents = dict.fromkeys(name for name in (*view.trail, *_claimants(view)) if name != HUMAN)
    targets = dict.fromkeys(row.to for row in rows if row.to)
    lanes = [view.client, *agents, *(name for name in targets if name not in agents and name != view.client)]
    lanes = [name for name in lanes if name != HUMAN]
    if any(HUMAN in (row.lane, row.to) for row in rows):
        lanes.append(HUMAN)
    everyone = tuple(dict.fromkeys(lanes))
    return Scene(
        lanes=everyone,
        everyone=everyone,
        client=view.client,
        began=view.moves[0].at if view.moves else 0,
        rows=tuple(_folded(rows)) if folded else rows,
    )


_AFTER: dict[str, State] = {
    "ask": "waiting",
    "delegate": "waiting",
    "turn_failed": "failed",
    "doubt": "doubt",
}
_RECORDED_OPENS = ("escalate", "resolve")
"""Moves that give work without a verdict; any other move gives work if it is admitted and has a receiver."""
_ENDS = ("complete", "fail", "cancel")
_REPLIES = ("reply", "approve", "deny")
_AGAIN = ("retry", *_REPLIES, "settle", "expire", "join")
_TASK_ENDS = ("deliver", "task_failed", "task_cancelled")
_WHOLE = ("freeze", "thaw", "cancel", "expire")
"""What happens to the request and not to a turn; `expire` only where it reaches nobody."""


def _rows(view: Timeline) -> Iterator[SceneRow]:
    """Yield a row for each entry, and keep account of who holds the work."""
    asked, held, before = view.client, Held(), -1
    known = {view.client, HUMAN, *view.trail, *_claimants(view)}
    for move in view.moves:
        giver, taker = _lane(view, move, asked), move.to
        if move.move in _WITHOUT_RECEIVER:
            giver, taker = move.from_, None
        form: Form = "arrow"
        refused = move.verdict == "refused"
        if refused:
            form = "broken"
        elif move.move in _WHOLE and taker is None:
            form = "band"
        elif taker is None or giver == taker or move.move in ("proposal", "assign"):
            form, taker = "note", None
        if not refused and move.move == "ask":
            asked = move.to or view.client
        if not refused or move.move == "submit":
            held.take(move, ended=refused or (form == "band" and move.move == "expire"))
        actor = named(move.from_, move.sender)
        yield SceneRow(
            seq=move.seq,
            first=before + 1,
            last=move.seq,
            at=move.at,
            form=form,
            move=move.move,
            lane=giver,
            to=taker if taker in known else None,
            aim=None if taker in known else taker,
            who="" if actor == giver else actor,
            text=move.summary,
            rule=move.rule,
            detail=move.detail or "",
            held=held.lanes,
        )
        before = move.seq


_WITHOUT_RECEIVER = ("offer", "claim")
"""Moves without another agent: an offer, and a claim that was refused."""


def _claimants(view: Timeline) -> Iterator[str]:
    """Yield agents whose claim was refused: they may have had no turn."""
    return (move.from_ for move in view.moves if move.move == "claim")


class Held:
    """Who holds work: the request itself, and each open task."""

    def __init__(self) -> None:
        self._root: tuple[str, State] | None = None
        self._tasks: dict[str, tuple[str, State]] = {}
        """By turn."""

    @property
    def lanes(self) -> tuple[tuple[str, State], ...]:
        """By lane; an agent with several tasks shows what it does with the newest."""
        held = ([] if self._root is None else [self._root]) + list(self._tasks.values())
        return tuple(dict(held).items())

    def take(self, move: TimelineEntry, *, ended: bool) -> None:
        """Apply an entry.

        Args:
            ended: True if it ended the request.
        """
        turn = "" if move.turn is None else move.turn.id
        if ended or move.move in _ENDS:
            self._root = None
            self._tasks.clear()
        elif move.move == "task" and move.to is not None:
            self._tasks[turn] = (move.to, "working")
        elif move.move in _TASK_ENDS:
            self._tasks.pop(turn, None)
        elif move.to is not None and self._gives_work(move):
            self._root = (move.to, "working")
        else:
            state = _AFTER.get(move.move) or ("working" if move.move in _AGAIN else None)
            if state is not None and turn in self._tasks:
                self._tasks[turn] = (self._tasks[turn][0], state)
            elif state is not None and self._root is not None:
                self._root = (self._root[0], state)

    @staticmethod
    def _gives_work(move: TimelineEntry) -> bool:
        admitted = move.verdict == "admitted" and move.move not in _AFTER
        return admitted or move.move in _RECORDED_OPENS


def _lane(view: Timeline, move: TimelineEntry, asked: str) -> str:
    """Return the lane on which an entry begins: people share one, and the guard acts on the turn's."""
    name = move.from_
    if name == view.client or name in view.trail:
        return name
    if name == GUARD:
        return view.client if move.turn is None else move.turn.agent
    if move.move in _REPLIES:
        return asked
    if move.move in _TASK_ENDS:  # the task was never opened, so its agent has no lane
        return move.to or view.client
    if move.verdict == "deferred" or (move.move in ("proposal", "doubt") and move.turn is not None):
        return name if move.turn is None else move.turn.agent
    return HUMAN


def _folded(rows: Sequence[SceneRow]) -> Iterator[SceneRow]:
    """Yield rows, with one fold for rows that repeat those before them."""
    signs = [(row.form, row.move, row.lane, row.to, row.aim, row.rule) for row in rows]
    at = 0
    while at < len(rows):
        length, times = max(
            ((length, _times(signs, at, length)) for length in range(1, LONGEST_CYCLE + 1)),
            key=lambda found: ((found[1] - 1) * found[0], -found[0]),
        )
        hidden = (times - 1) * length
        if hidden < _WORTH_FOLDING:
            yield rows[at]
            at += 1
            continue
        yield from rows[at : at + length]
        yield _fold(rows[at + length : at + length * times], length)
        at += length * times


def _times(signs: Sequence[object], at: int, length: int) -> int:
    """Return how often the pattern that begins here is repeated from here on."""
    times = 1
    while signs[at : at + length] == signs[at + length * times : at + length * (times + 1)]:
        times += 1
    return times


def _fold(hidden: Sequence[SceneRow], cycle: int) -> SceneRow:
    last = hidden[-1]
    return SceneRow(
        seq=hidden[0].seq,
        first=hidden[0].first,
        last=last.seq,
        at=last.at,
        form="fold",
        move="fold",
        lane=last.lane,
        held=last.held,
        cycle=cycle,
        times=len(hidden) // cycle,
    )


# --- as mermaid's text --------------------------------------------------------------------------------

_MERMAID_CHARS = 100
_SAFE = frozenset(" .,:!?'()/-+=_")


def mermaid(view: Scene) -> str:
    """Return a scene as a diagram (https://mermaid.js.org/syntax/sequenceDiagram.html), one line per row.

    No foreign name or text can end a line or begin a keyword.
    """
    return "\n".join(_lines(view)) + "\n"


def _lines(view: Scene) -> Iterator[str]:
    ids = {lane: f"p{place}" for place, lane in enumerate(view.lanes)}
    yield "sequenceDiagram"
    for lane, id_ in ids.items():
        kind = "actor" if lane in (view.client, HUMAN) else "participant"
        yield f"    {kind} {id_} as {_coded('people' if lane == HUMAN else lane)}"
    for row in view.rows:
        yield f"    {_line(row, ids)}"


def _line(row: SceneRow, ids: dict[str, str]) -> str:
    here = ids[row.lane]
    to = here if row.to is None else ids[row.to]
    first, last = next(iter(ids.values())), next(reversed(ids.values()))
    across = first if first == last else f"{first},{last}"
    who = f" by {row.who}" if row.who else ""
    match row.form:
        case "fold":
            return f"Note over {across}: {_coded(row.across)}"
        case "band":
            return f"Note over {across}: {_coded(_joined(row.across, row.text))}"
        case "note":
            return f"Note over {here}: {_coded(_joined(row.move + who, row.text or row.detail))}"
        case "broken":
            aimed = f" to {row.aim}" if row.aim else ""
            return f"{here}-x{to}: {_coded(_joined(f'{row.move}{aimed} refused by {row.rule}', row.text))}"
        case "arrow":
            shaft = "-->>" if row.move in ("hand_back", *_REPLIES, "settle", *_TASK_ENDS) else "->>"
            return f"{here}{shaft}{to}: {_coded(_joined(row.move + who, row.text))}"


def _joined(move: str, text: str) -> str:
    return f"{move}: {text}" if text else move


def _coded(text: str) -> str:
    """Return a text in which every character with a meaning for mermaid or HTML is a character code."""
    line = short(text, _MERMAID_CHARS)
    coded = (char if char.isalnum() or char in _SAFE else f"#{ord(char)};" for char in line)
    return "".join(coded) or " "
