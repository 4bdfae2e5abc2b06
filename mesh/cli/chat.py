"""`mesh chat`: a conversation with the fleet at the terminal, one line per message."""

import asyncio
import os
import secrets
import signal
import stat
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from mesh import ops
from mesh.cli.exits import Exit, Leave
from mesh.cli.options import Where, framed
from mesh.cli.output import as_text, note, remark, say
from mesh.cli.waiting import Typed, ask_at_terminal
from mesh.client import Client, Outcome, Question
from mesh.client.follow import AgentNote, Following
from mesh.errors import NotFound
from mesh.service.printable import one_line
from protocol.wire.commands import Submit
from protocol.wire.ids import AgentName, RequestId
from protocol.wire.records import LiveNote

T = TypeVar("T")

_LAST_NOTES_S = 6.0
"""How long the last live notes may take after the end (s)."""
_CANCEL_S = 10.0
"""How long a cancelled message may take to end (s)."""
_PROMPT = "> "


class _Interrupted(Exception):
    """Ctrl-C was pressed."""


@click.command()
@click.option("--to", help="The agent that gets the first message; by default the fleet's entry agent.")
@click.option("--conversation", help="One to go on with; by default a new one.")
@click.option("--policy", default="default", show_default=True, help="The policy that judges each message.")
@framed
async def chat(where: Where, *, to: str | None, conversation: str | None, policy: str) -> None:
    """Talk to the fleet, a line a message.

    The next message goes to the agent that answered or asked last. Agents with `transcript=` see what was
    said. Ctrl-C cancels the message that is under way; at the prompt, it ends the chat, and so does Ctrl-D.
    """
    if conversation is not None:
        await _show_earlier(where, conversation)
    else:
        conversation = f"chat-{secrets.token_hex(4)}"
    async with await where.client() as client:
        note(f"conversation {conversation}; Ctrl-C cancels a message, Ctrl-D ends the chat")
        await Conversation(client, conversation, policy, to).go()


async def _show_earlier(where: Where, conversation: str) -> None:
    """Show the earlier exchanges of a conversation, as far as its facts hold them."""
    from mesh.model.transcript import exchanges_in  # loads what models need

    async with await where.connect("client", "operator") as bus:
        try:
            facts = await ops.memory.facts(bus, conversation, bus.name)
        except NotFound:
            return  # a new one
    exchanges, elsewhere = exchanges_in({fact.key: fact.value for fact in facts})
    if elsewhere:
        note("earlier exchanges lie in the store of artifacts: mesh memory show tells where")
    for exchange in exchanges:
        for each in exchange.said:
            say(f"{each.by}: {each.text}", lines=True)


class Conversation:
    """A chat: it reads a line, submits it, shows the result, and reads the next line.

    Args:
        to: the agent that gets the first message; None for the fleet's entry agent.
    """

    def __init__(self, client: Client, conversation: str, policy: str, to: str | None) -> None:
        self._client, self._conversation, self._policy = client, conversation, policy
        self._to = to
        self._lines = _lines()
        self._asking = asyncio.Lock()
        self._waiting: asyncio.Future[Any] | None = None
        """What Ctrl-C interrupts."""

    async def go(self) -> None:
        """Talk until the input ends. Raises Leave for a Ctrl-C at the prompt."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            while True:
                remark(_PROMPT, end="")
                text = await self._interruptible(self._lines.line())
                if text.strip():
                    await self._message(text)
        except EOFError:
            remark("")
        except _Interrupted:
            remark("")
            raise Leave(Exit.INTERRUPTED) from None
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _interrupt(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def _interruptible(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raises _Interrupted if Ctrl-C is pressed meanwhile."""
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        self._waiting = task
        try:
            return await task
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                raise
            raise _Interrupted from None
        finally:
            self._waiting = None

    async def _message(self, text: str) -> None:
        """Submit a message and show its end; cancel it on Ctrl-C, and if the input ends."""
        request, view = self._client.new_id(), View()
        wanted = Submit(
            text=text,
            to=None if self._to is None else AgentName(self._to),
            policy=self._policy,
            conversation=self._conversation,
            continue_with="last",
        )
        try:
            outcome = await self._interruptible(self._ended(request, wanted, view))
        except (_Interrupted, EOFError) as stopped:
            view.end_line()
            await self._cancelled(request)
            if isinstance(stopped, EOFError):
                raise
            return
        view.conclude(outcome)
        if outcome.status != "refused":
            self._to = None  # from now on it goes to whoever spoke last

    async def _ended(self, request: RequestId, wanted: Submit, view: "View") -> Outcome:
        """Return how a message ended, with replies typed at the terminal."""

        async def reply(question: Question) -> Any:
            async with self._asking:
                view.end_line()
                return await ask_at_terminal(question, self._lines, by=question.agent)

        async with self._client.follow(request) as feed:
            showing = asyncio.create_task(view.show(feed))
            try:
                await self._client.submit_whole(wanted, request=request)
                outcome = await self._client.wait(request, on_question=reply)
                await asyncio.wait({showing}, timeout=_LAST_NOTES_S)
                return outcome
            finally:
                showing.cancel()
                await asyncio.gather(showing, return_exceptions=True)

    async def _cancelled(self, request: RequestId) -> None:
        """Cancel a message, and report what became of it."""
        await self._client.cancel(request, "cancelled in the chat")
        try:
            outcome = await self._client.wait(request, timeout_s=_CANCEL_S)
        except TimeoutError:
            note(f"{request} was asked to end, and has not: mesh request show {request}")
        else:
            View().conclude(outcome)


class View:
    """Shows one message on its way: agents' words as they come, the tools that they call, and the end."""

    def __init__(self) -> None:
        self._is_live = sys.stdout.isatty() and sys.stderr.isatty()
        self._speaker = ""
        """The agent in the middle of a line."""
        self._reply_text: list[str] = []
        """The text of its newest reply so far."""

    async def show(self, feed: Following) -> None:
        """Show live notes until the feed ends."""
        async for item in feed:
            if isinstance(item, AgentNote) and self._is_live:
                self._note(item.agent, item.note)

    def _note(self, agent: str, live: LiveNote) -> None:
        if live.kind == "text":
            if live.again:
                self.end_line(" (begins again)")
                self._reply_text.clear()
            if not live.text:
                return
            if self._speaker != agent:
                self.end_line()
                self._reply_text.clear()
                self._speaker = agent
                remark(f"{one_line(agent)}: ", end="")
            self._reply_text.append(live.text)
            remark(live.text, lines=True, end="")
        elif live.kind == "step" and live.state == "called":
            self.end_line()
            self._reply_text.clear()
            if live.what == "tool":
                remark(f"   {one_line(agent)}: [{one_line(live.name)}]")

    def end_line(self, tail: str = "") -> None:
        """End the line that an agent is in the middle of."""
        if self._speaker:
            self._speaker = ""
            remark(tail)

    def conclude(self, outcome: Outcome) -> None:
        """Show the answer, unless it was just streamed; or why there is none."""
        streamed = bool(self._speaker)
        self.end_line()
        if outcome.status != "completed":
            note(f"{outcome.status}: {one_line(outcome.reason)}")
            return
        answer = as_text(outcome.answer)
        if not streamed or "".join(self._reply_text).strip() != answer.strip():
            say(f"{outcome.agent or 'a person'}: {answer}", lines=True)


# --- lines ----------------------------------------------------------------------------------------


class _File:
    """Lines of a file, which never blocks."""

    async def line(self) -> str:
        """Return the next line. Raises EOFError at the end."""
        line = "" if sys.stdin is None else sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")


def _lines() -> Typed | _File:
    """Return where lines come from: a terminal, a pipe or a file."""
    if sys.stdin is None:
        return _File()
    number = sys.stdin.fileno()
    kind = os.fstat(number).st_mode
    is_waited_for = sys.stdin.isatty() or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
    return Typed(number) if is_waited_for else _File()
