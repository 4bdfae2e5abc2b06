"""Questions of agents to the client of a request: put at the terminal, or told with the reply's command."""

import asyncio
import contextlib
import os
import shlex
import sys
import termios
from typing import TYPE_CHECKING, Any

from mesh import ops
from mesh.cli.options import Where
from mesh.cli.output import as_json_text, note, remark
from mesh.service.printable import short

if TYPE_CHECKING:
    from mesh.client import Question

_SUMMARY_CHARS = 160
_READ_BYTES = 4_096


class Questions:
    """The questions of agents to the client. At a terminal they are put; elsewhere they are told."""

    def __init__(self, where: Where) -> None:
        self._where = where
        at_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._typed = Typed(sys.stdin.fileno()) if at_terminal else None
        self.open: Question | None = None
        """The question that waits for a reply."""

    async def put(self, question: "Question") -> Any:
        """Return the reply. Without one it never ends: somebody may give it elsewhere."""
        if self.open is not None:
            note("what was asked before has had its reply elsewhere, or its time was up")
        self.open = question
        if self._typed is None:
            remark(f"mesh: {question.request} asks: {question.question}", lines=True)
        else:
            try:
                reply = await _ask(question, self._typed)
            except EOFError:
                self._typed = None  # the input was ended: there is no reply to the next question either
            else:
                self.open = None
                return reply
        note(_how_to_reply(self._where, question.request, question.schema))
        await asyncio.get_running_loop().create_future()


def _how_to_reply(where: Where, request: str, schema: Any) -> str:
    """Return how to reply to a question from another command, with the same options as this one."""
    flags = where.flags
    said = (("--url", flags.url), ("--context", flags.context), ("--as", flags.name))
    options = "".join(f" {option} {shlex.quote(value)}" for option, value in said if value is not None)
    wanted = "" if schema is None else f" that follows {short(as_json_text(schema), _SUMMARY_CHARS)}"
    return f"it goes on with a reply{wanted}: {ops.queue.reply_command(request, schema, options)}"


async def _ask(question: "Question", typed: "Typed") -> Any:
    """Put an agent's question at the terminal, until the reply is as the question wants it.

    Raises EOFError when nobody will say anything.
    """
    import msgspec

    from mesh.agent._reply_schema import ReplyInvalid, SchemaUnusable, check_reply

    remark(question.question, lines=True)
    while True:
        remark("> ", end="")
        try:
            value: Any = await typed.line()
        except BaseException:  # Ctrl-C, too: the next line must not follow the prompt
            remark("")
            raise
        if question.schema is not None:
            with contextlib.suppress(msgspec.DecodeError):
                value = msgspec.json.decode(value)
        try:
            await asyncio.to_thread(check_reply, question.schema, value)
            return value
        except SchemaUnusable:
            return value
        except ReplyInvalid as wrong:
            remark(f"not what was asked for: {wrong}")


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
