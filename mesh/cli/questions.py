"""What agents ask of whoever sent a request: put to the terminal, or told with the command that replies."""

import asyncio
import contextlib
import os
import shlex
import sys
import termios
from typing import TYPE_CHECKING, Any

from mesh.cli.options import Where
from mesh.cli.output import remark
from mesh.service.printable import short

if TYPE_CHECKING:
    from mesh.client import Question

_SUMMARY_CHARS = 160
_READ_BYTES = 4_096


class Questions:
    """What agents ask of whoever sent the request. At a terminal it is put; elsewhere it is told."""

    def __init__(self, where: Where) -> None:

        self._where = where
        at_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._typed = Typed(sys.stdin.fileno()) if at_terminal else None
        self.open: Question | None = None
        """What waits for a reply."""

    async def put(self, question: "Question") -> Any:
        """Return the reply. Where nobody gives one it never ends: somebody may give it elsewhere."""
        if self.open is not None:
            remark("mesh: what was asked before has had its reply elsewhere, or its time was up")
        self.open = question
        if self._typed is not None:
            try:
                reply = await _ask(question, self._typed)
            except EOFError:
                self._typed = None  # whoever ended the input has no reply for the next question either
                remark(f"mesh: {_how_to_reply(self._where, question.request, question.schema)}")
            else:
                self.open = None
                return reply
        else:
            remark(f"mesh: {question.request} asks: {question.question}", lines=True)
            remark(f"mesh: {_how_to_reply(self._where, question.request, question.schema)}")
        await asyncio.get_running_loop().create_future()


def _how_to_reply(where: Where, request: str, schema: Any) -> str:
    """Return how to reply to a question from another command, with the same options as this one."""
    import msgspec

    from mesh.ops.queue import reply_command

    said = (("--url", where.url), ("--context", where.context), ("--as", where.name))
    options = "".join(f" {option} {shlex.quote(value)}" for option, value in said if value is not None)
    wanted = ""
    if schema is not None:
        wanted = f" that follows {short(msgspec.json.encode(schema).decode(), _SUMMARY_CHARS)}"
    return f"it goes on with a reply{wanted}: {reply_command(request, schema, options)}"


async def _ask(question: "Question", typed: "Typed") -> Any:
    """Put an agent's question to whoever sits at the terminal, until the reply is what it asks for.

    Raises EOFError when nobody will say anything.
    """
    import msgspec

    from mesh.agent._reply_schema import ReplyInvalid, SchemaUnusable, check_reply

    remark(question.question, lines=True)
    while True:
        remark("> ", end="")
        try:
            value: Any = await typed.line()
        except BaseException:  # Ctrl-C, too: what is said next does not stand behind the prompt
            remark("")
            raise
        if question.schema is not None:
            with contextlib.suppress(msgspec.DecodeError):
                value = msgspec.json.decode(value)
        try:
            await asyncio.to_thread(check_reply, question.schema, value)
        except ReplyInvalid as wrong:
            remark(f"not what was asked for: {wrong}")
        except SchemaUnusable:
            return value
        else:
            return value


def asked_in_a_line(where: Where, request: str, question: str, schema: Any) -> str:
    """Return what a client is asked and how it replies, as one line."""
    return f"you are asked: {short(question, _SUMMARY_CHARS)}; {_how_to_reply(where, request, schema)}"


class Typed:
    """Lines that are typed at a terminal. Waiting for one can be cancelled; a thread's reading could not be.

    Most terminals hand over a line at a time. One that does not may hand over a piece, or several lines.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._left = b""
        """What has come and was not taken as a line."""

    async def line(self) -> str:
        """Return the next line, without its end.

        Raises EOFError when the terminal is gone or its input was ended; what has no end of line is not
        said then. When cancelled, what was typed so far is dropped: it is no reply to another question,
        and no command for the shell.
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
        """Return what comes next; nothing at the end."""
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
