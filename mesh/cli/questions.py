"""What agents ask of whoever sent a request: put to the terminal, or told with the command that replies."""

from typing import TYPE_CHECKING, Any

from mesh.cli.options import Where
from mesh.cli.output import remark, short

if TYPE_CHECKING:
    from mesh.cli.typed import Typed
    from mesh.client import Question

_SUMMARY_CHARS = 160


class Questions:
    """What agents ask of whoever sent the request. At a terminal it is put; elsewhere it is told."""

    def __init__(self, where: Where) -> None:
        import sys

        from mesh.cli.typed import Typed

        self._where = where
        at_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._typed = Typed(sys.stdin.fileno()) if at_terminal else None
        self.open: Question | None = None
        """What waits for a reply."""

    async def put(self, question: "Question") -> Any:
        """Return the reply. Where nobody gives one it never ends: somebody may give it elsewhere."""
        import asyncio

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
    import shlex

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
    import asyncio
    import contextlib

    import msgspec

    from mesh.agent.reply_schema import ReplyInvalid, SchemaUnusable, check_reply

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
