"""A request on standard error as it happens: the story's lines, what turns do, what models say."""

import sys
from typing import TYPE_CHECKING, Any

from mesh.cli.output import remark, short

if TYPE_CHECKING:
    from mesh.agent.record import Record
    from mesh.client.follow import Following
    from protocol.wire.notices import LiveNote

_INDENT = "       "
_CHARS = 400
_ROUNDS = 1_000
"""Whose notes are counted at once: any agent can name any number of rounds."""


class Shown:
    """Writes what is followed. On a terminal a model's words appear as they come; elsewhere a line a reply.

    Args:
        told: whether the log's own lines are shown, which say what became of each move.
    """

    def __init__(self, *, told: bool) -> None:
        from mesh.cli.story import Teller

        self._told = told
        self._teller = Teller()
        self._happened: list[Any] = []
        self._speaker = ""
        """Who is in the middle of a line."""
        self._line: list[str] = []
        """That line, where it is written as a whole."""
        self._next: dict[tuple[str, str, int], int] = {}
        """The number that the next note of an agent's round has, if none is lost."""
        self._journaled: set[tuple[str, int]] = set()
        """Rounds whose beginning was told by their journal."""

    async def until_the_end(self, feed: "Following") -> None:
        """Show everything that comes. Raises what following raises."""
        from mesh.client.follow import Happened, Heard, Journaled
        from protocol.wire.notices import LiveNote

        try:
            async for item in feed:
                match item:
                    case Happened(event=event):
                        self._event(event)
                    case Journaled(agent=agent, round=round_, step=step):
                        self._journaled.add((agent, round_))
                        self._step(agent, step)
                    case Heard(agent=agent, note=LiveNote() as note):
                        self._note(short(agent, _CHARS), note)
                    case _:
                        pass
        finally:
            self._end_line()

    def _event(self, event: Any) -> None:
        self._end_line()
        self._happened.append(event)
        for line in self._teller.more(self._happened)[1]:
            remark(line.plain)

    def _step(self, agent: str, step: "Record") -> None:
        if step.kind == "model":
            said = step.value.get("text", "") if isinstance(step.value, dict) else ""
            if said:
                self._say(agent, short(str(said), _CHARS))
        elif step.kind in ("call", "effect"):
            self._say(agent, f"[{short(step.name, _CHARS)}{' failed' if step.error is not None else ''}]")

    def _note(self, agent: str, note: "LiveNote") -> None:
        self._mark_gap(agent, note)
        if note.kind == "text":
            if note.again:
                self._end_line(" (begins again)")
            self._speak(agent, note.text)
            return
        self._end_line()
        if note.kind == "began" and note.round:
            self._say(agent, f"[round {note.round}]")
        elif note.kind == "step" and note.what == "tool" and note.state != "returned":
            self._say(agent, f"[{short(note.name, _CHARS)}{' failed' if note.state == 'failed' else ''}]")
        elif note.kind == "step" and note.what == "model" and note.state == "called":
            self._say(agent, f"[asks {short(note.name, _CHARS)}]")
        elif note.kind == "ended" and note.failed:
            self._say(agent, f"[stopped: {short(note.failed, _CHARS)}]")
        elif note.kind == "ended" and not self._told:
            self._say(agent, short(f"proposes {note.move} {note.to}".rstrip(), _CHARS))

    def _mark_gap(self, agent: str, note: "LiveNote") -> None:
        """Show that notes were lost before this one; a round that runs again counts from 0."""
        run = (agent, note.turn, note.round)
        begins = run not in self._next and (agent, note.round) in self._journaled
        awaited = note.n if begins else self._next.get(run, 0)
        if len(self._next) >= _ROUNDS:
            self._next.clear()
        self._next[run] = note.n + 1
        if note.n not in (0, awaited):
            self._end_line()
            remark(f"{_INDENT}…")

    def _say(self, agent: str, words: str) -> None:
        self._end_line()
        remark(f"{_INDENT}{agent}: {words}")

    def _speak(self, agent: str, text: str) -> None:
        """Write a piece of what a model says, on its line."""
        piece = "".join(" " if char.isspace() else char for char in text)
        if self._speaker != agent:
            self._end_line()
            self._speaker = agent
            self._write(f"{_INDENT}{agent}: ")
        self._write(piece)

    def _write(self, text: str) -> None:
        if sys.stderr.isatty():
            remark(text, end="")
        else:
            self._line.append(text)

    def _end_line(self, tail: str = "") -> None:
        if self._speaker:
            self._write(tail)
            remark("".join(self._line))
            self._speaker = ""
            self._line.clear()
