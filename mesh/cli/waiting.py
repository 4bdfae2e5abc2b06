"""A waiting request on the terminal: what happens to it, and the questions that its submitter answers.

It sees everything if it follows its request, else only what delays it. An agent's question to the client is
asked at the terminal, or shown with the command that replies to it.
"""

import asyncio
import contextlib
import os
import shlex
import sys
import termios
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from mesh import ops
from mesh.bus.connection import Bus
from mesh.cli.options import Where
from mesh.cli.output import as_json_text, note, remark
from mesh.client import Client, Question
from mesh.client.follow import AgentNote, Following, JournalStep, LogEvent
from mesh.errors import MeshError
from mesh.ops.words import FOLLOWED_CHARS, INDENT, Teller, Trouble, asks, step_in_lines
from mesh.service.printable import short
from protocol.wire.ids import RequestId
from protocol.wire.records import LiveNote


class Shown:
    """Writes a followed request on standard error: the story's lines, what turns do, what models write.

    On a terminal a model's words appear as they come; elsewhere one line per reply.

    Args:
        told: True if the log's own lines are shown, which report what became of each move.
    """

    def __init__(self, *, told: bool) -> None:
        self._told = told
        self._teller = Teller()
        self._happened: list[Any] = []
        self._speaker = ""
        """The agent in the middle of a line."""
        self._line: list[str] = []
        """That line, if it is written as a whole."""
        self._next: dict[tuple[str, str, int], int] = {}
        """The number of the next note of an agent's round, if none is lost."""
        self._journaled: set[tuple[str, int]] = set()
        """Rounds whose beginning was shown from their journal."""

    async def until_the_end(self, feed: Following) -> None:
        """Show everything that comes. Raises the errors of following."""
        try:
            async for item in feed:
                match item:
                    case LogEvent(event=event):
                        self._end_line()
                        self._happened.append(event)
                        for line in self._teller.more(self._happened)[1]:
                            remark(line.plain)
                    case JournalStep(agent=agent, round=round_, step=step):
                        self._journaled.add((agent, round_))
                        if step.kind != "intent":  # its note was shown already
                            for words in step_in_lines(step):
                                self._print(agent, words)
                    case AgentNote(agent=agent, note=note):
                        self._mark_gap(agent, note)
                        self._note(short(agent, FOLLOWED_CHARS), note)
        finally:
            self._end_line()

    def _note(self, agent: str, note: LiveNote) -> None:
        if note.kind == "text":
            if note.again:
                self._end_line(" (begins again)")
            self._speak(agent, note.text)
            return
        words = ""
        match note.kind, note.what, note.state:
            case "began", _, _ if note.round:
                words = f"[round {note.round}]"
            case "step", "tool", "called" | "failed":
                words = f"[{note.name}{' failed' if note.state == 'failed' else ''}]"
            case "step", "model", "called":
                words = asks(note.name)
            case "ended", _, _ if note.failed:
                words = f"[stopped: {note.failed}]"
            case "ended", _, _ if not self._told:
                words = f"proposes {note.move} {note.to}".rstrip()
        self._print(agent, short(words, FOLLOWED_CHARS))

    def _mark_gap(self, agent: str, note: LiveNote) -> None:
        """Show that notes were lost before this one; a round that runs again counts from 0."""
        run = (agent, note.turn, note.round)
        begins = run not in self._next and (agent, note.round) in self._journaled
        awaited = note.n if begins else self._next.get(run, 0)
        self._next[run] = note.n + 1
        if note.n not in (0, awaited):
            self._end_line()
            remark(f"{INDENT}…")

    def _print(self, agent: str, words: str) -> None:
        self._end_line()
        if words:
            remark(f"{INDENT}{agent}: {words}")

    def _speak(self, agent: str, text: str) -> None:
        """Write a piece of a model's text, on its line."""
        if self._speaker != agent:
            self._end_line()
            self._speaker = agent
            self._write(f"{INDENT}{agent}: ")
        self._write("".join(" " if char.isspace() else char for char in text))

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


# --- what holds it up --------------------------------------------------------------------------------

UNDISTURBED_S = 0.25
"""A request that ends within this time (s) is not examined."""
_TROUBLE_CHARS = 400


async def tell_trouble(
    client: Client, request: RequestId, find_viewer: Callable[[], Awaitable[Bus | None]]
) -> None:
    """Write a line on standard error for each trouble of a request, until it ends or this is cancelled.

    Args:
        find_viewer: returns a connection that may read the log. Without it, only rounds that stopped are
            known, from the live notes to the client.
    """
    await asyncio.sleep(UNDISTURBED_S)
    with contextlib.suppress(MeshError):  # waiting for the answer continues without this
        async with contextlib.AsyncExitStack() as stack:
            viewer = await find_viewer()
            if viewer is not None:
                await stack.enter_async_context(viewer)
            feed = await stack.enter_async_context(client.follow(request, viewer=viewer))
            trouble = Trouble()
            async for item in feed:
                match item:
                    case LogEvent(event=event):
                        if words := trouble.in_words(event):
                            note(short(words, _TROUBLE_CHARS))
                    case AgentNote(agent=agent, note=live) if viewer is None and live.failed:
                        note(short(f"{agent}'s turn broke: {live.failed}", _TROUBLE_CHARS))


# --- what an agent asks the client -----------------------------------------------------------------

_SUMMARY_CHARS = 160
_READ_BYTES = 4_096


class QuestionPrompts:
    """Agents' questions to the client: asked one by one at a terminal; elsewhere only shown."""

    def __init__(self, where: Where) -> None:
        self._where = where
        at_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._typed = Typed(sys.stdin.fileno()) if at_terminal else None
        self._turn = asyncio.Lock()
        """Held while a question is at the terminal."""
        self._ended_elsewhere = False
        """True if the last question ended without a reply from here."""
        self._open = set[int]()
        """Questions that wait for a reply, by number of the event that asked."""

    async def put(self, question: Question) -> Any:
        """Return the reply. Without one this waits for ever: a reply may be given elsewhere."""
        self._open.add(question.n)
        try:
            async with self._turn:
                if self._ended_elsewhere:
                    note("what was asked before has had its reply elsewhere, or its time was up")
                    self._ended_elsewhere = False
                if self._typed is None:
                    remark(f"mesh: {question.request} asks: {question.question}", lines=True)
                else:
                    try:
                        return await self._put_now(question, self._typed)
                    except EOFError:
                        self._typed = (
                            None  # the input has ended, so there is no reply to the next question either
                        )
                several = question.n if len(self._open) > 1 else None
                note(_how_to_reply(self._where, question.request, question.schema, several))
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self._ended_elsewhere = True
                raise
        finally:
            self._open.discard(question.n)

    async def _put_now(self, question: Question, typed: "Typed") -> Any:
        try:
            return await ask_at_terminal(question, typed)
        except asyncio.CancelledError:
            self._ended_elsewhere = True
            raise


def _how_to_reply(where: Where, request: str, schema: Any, n: int | None = None) -> str:
    """Return how to reply to a question from another command, with the same options as this one.

    Args:
        n: number of the event that asked, if other questions wait beside it.
    """
    flags = where.flags
    flags_given = (("--url", flags.url), ("--context", flags.context), ("--as", flags.name))
    options = "".join(f" {option} {shlex.quote(value)}" for option, value in flags_given if value is not None)
    wanted = "" if schema is None else f" that follows {short(as_json_text(schema), _SUMMARY_CHARS)}"
    return f"it goes on with a reply{wanted}: {ops.queue.reply_command(request, schema, options, n=n)}"


_YES_OR_NO = {"yes": True, "y": True, "no": False, "n": False}


class Lines(Protocol):
    """Where lines are typed."""

    async def line(self) -> str:
        """Return the next line. Raises EOFError at the end of the input."""
        ...


async def ask_at_terminal(question: Question, typed: Lines, *, by: str = "") -> Any:
    """Ask an agent's question at the terminal, until the reply fits the question.

    If it wants true or false, yes and no are accepted.

    Args:
        by: who asks, if that is to be shown.

    Raises EOFError at the end of the input.
    """
    from mesh.agent._reply_schema import ReplyInvalid, SchemaUnusable, check_reply

    remark(f"{by}: {question.question}" if by else question.question, lines=True)
    is_yes_or_no = question.schema is not None and question.schema.get("type") == "boolean"
    while True:
        remark("yes or no> " if is_yes_or_no else "> ", end="")
        try:
            value: Any = await typed.line()
        except BaseException:  # Ctrl-C, too: the next line must not follow the prompt
            remark("")
            raise
        if question.schema is not None:
            with contextlib.suppress(msgspec.DecodeError):
                value = msgspec.json.decode(value)
        if is_yes_or_no and isinstance(value, str):
            value = _YES_OR_NO.get(value.strip().lower(), value)
        try:
            await asyncio.to_thread(check_reply, question.schema, value)
            return value
        except SchemaUnusable:
            return value
        except ReplyInvalid as wrong:
            remark(f"not what was asked for: {wrong}")


def asked_in_a_line(where: Where, request: str, question: str, schema: Any, n: int | None = None) -> str:
    """Return a question to the client and how to reply to it, as one line."""
    return f"you are asked: {short(question, _SUMMARY_CHARS)}; {_how_to_reply(where, request, schema, n)}"


class Typed:
    """Lines typed at a terminal. Waiting for one can be cancelled, unlike a thread's reading.

    Most terminals hand over one line at a time. Some may hand over a piece of one, or several.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._left = b""
        """Bytes that were read and not yet returned as a line."""

    async def line(self) -> str:
        """Return the next line, without its end.

        Raises EOFError if the terminal is gone or its input has ended; text without a line end is then
        ignored. When cancelled, what was typed so far is dropped: it is neither a reply to another question
        nor a command for the shell.
        """
        try:
            while b"\n" not in self._left:
                part = await self._part()
                if not part:
                    self._left = b""
                    raise EOFError
                self._left += part
        except asyncio.CancelledError:
            self._drop()
            raise
        line, _, self._left = self._left.partition(b"\n")
        return line.decode(errors="replace").removesuffix("\r")

    async def _part(self) -> bytes:
        """Return the next bytes; empty at the end."""
        loop = asyncio.get_running_loop()
        came: asyncio.Future[bytes] = loop.create_future()

        def read() -> None:
            loop.remove_reader(self._terminal)
            try:
                part = os.read(self._terminal, _READ_BYTES)
            except OSError:  # hung up
                part = b""
            if not came.done():
                came.set_result(part)

        loop.add_reader(self._terminal, read)
        try:
            return await came
        finally:
            loop.remove_reader(self._terminal)

    def _drop(self) -> None:
        self._left = b""
        with contextlib.suppress(termios.error):
            termios.tcflush(self._terminal, termios.TCIFLUSH)
