"""Views: chats with the fleet, as the operator whose key the page holds.

A message is a request of that operator in a conversation, and goes to whoever spoke last there. What was
said is read from the log, so it needs no agent that keeps a transcript. A message that ended never changes,
so its lines are cached.

A form names the request that it will begin. Sent twice, it begins it once.
"""

import asyncio
import contextlib
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.agent._reply_schema import ReplyInvalid
from mesh.bus.event_log import JetStreamLog
from mesh.client import Client, SubmitRejected
from mesh.client.follow import outcome_of
from mesh.errors import NotFound, UsageWrong
from mesh.ops import control, log, queue
from mesh.ops.queue import Waiting
from mesh.ops.where import Filter
from mesh.service.printable import as_text, short
from mesh.ui.page import Page, is_piece, number
from mesh.ui.people import field_for, reply
from mesh.ui.story import Stories
from protocol.wire import codec, events
from protocol.wire.commands import Submit
from protocol.wire.events import AnyEvent, FactsWithheld
from protocol.wire.handoff import TEXT_FACT
from protocol.wire.ids import AgentName, RequestId

MESSAGES = 30
"""Messages of a conversation that are shown, the newest."""
_LISTED = 200
"""Newest requests among which conversations are looked for."""
_KEPT = 500
_LOOK_S = 0.05
MOST_NAME = 128
"""Longest name of a conversation, in characters."""


class Said(NamedTuple):
    """One line of a conversation."""

    by: str
    """The agent or person; empty for the client."""
    text: str
    kind: Literal["said", "asked", "replied", "answered", "refused", "failed", "expired", "cancelled"]
    at: int
    """UTC µs."""


class ChatMessage(NamedTuple):
    """One message of a conversation, with what came of it."""

    request: str
    lines: tuple[Said, ...] = ()
    """Empty until a guard has decided it."""
    is_open: bool = True
    head: int = -1
    """Number of its newest event."""
    waiting: tuple[Waiting, ...] = ()
    """What its client, or people, have to answer."""


def said_in(happened: Sequence[AnyEvent], client: str) -> tuple[Said, ...]:
    """Return what a client and the fleet said to each other in a request, given all its events."""
    lines, agents, asked = list[Said](), dict[str, str](), set[str]()
    hidden: FactsWithheld | None = None
    for event in happened:
        if event.work is not None:
            agents[event.work.turn] = event.work.handoff.to_agent
        match event:
            case FactsWithheld():
                hidden = event
            case events.RequestOpened(work=work):
                known = (*work.handoff.facts, *(() if hidden is None else hidden.facts))
                text = next((fact.value for fact in known if fact.key == TEXT_FACT), "")
                lines.append(Said("", as_text(text), "said", event.at))
            case events.RequestRefused(submit=submit, refusal=refusal):
                lines.append(Said("", submit.text, "said", event.at))
                lines.append(Said("", f"{refusal.rule}: {refusal.detail}", "refused", event.at))
            case events.TurnSuspended(ask=ask) if ask.to_agent == client:
                asked.add(event.turn)
                lines.append(Said(agents.get(event.turn, ""), ask.question, "asked", event.at))
            case events.TurnResumed(work=work) if event.turn in asked:
                asked.discard(event.turn)
                if event.sender is not None:
                    lines.append(Said("", as_text(work.past[-1].reply), "replied", event.at))
            case events.RequestCompleted(answer=answer):
                by = event.by or outcome_of(event).agent or "a person"
                lines.append(Said(by, as_text(answer), "answered", event.at))
            case events.RequestFailed() | events.RequestExpired() | events.RequestCancelled():
                ended = outcome_of(event)
                lines.append(Said("", ended.reason, ended.status, event.at))  # type: ignore[arg-type]
            case _:
                pass
    return tuple(lines)


class Chats:
    """Reads conversations of the page's operator.

    Args:
        page: a page that acts with an operator's key.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._stories = Stories(page.bus)
        self._ended = OrderedDict[str, ChatMessage]()

    async def client(self) -> Client:
        """Return the client that messages are sent as. Raises ReadOnly."""
        bus = await self._page.operator()
        client = await self._page.client_of(bus.name)
        assert client is not None  # its connection was just given
        return client

    async def conversations(self, client: str) -> list[tuple[str, str, int]]:
        """Return the newest conversations: name, newest text, UTC µs."""
        rows = await self._rows(Filter(tags=(f"client:{client}",)), _LISTED)
        newest: dict[str, tuple[str, str, int]] = {}
        for row in rows:
            if row.conversation is not None:
                newest.setdefault(row.conversation, (row.conversation, row.text, row.opened))
        return [*newest.values()]

    async def messages(self, client: str, name: str, sent: str | None) -> list[ChatMessage]:
        """Return the newest messages of a conversation, the oldest of them first.

        Args:
            sent: one that was just sent, which the index may not have yet.
        """
        rows = await self._rows(Filter(tags=(f"client:{client}",), conversation=name), MESSAGES)
        requests = [row.request for row in reversed(rows)]
        if sent is not None and sent not in requests:
            requests.append(sent)
        return [await self._message(client, request) for request in requests]

    async def _rows(self, wanted: Filter, limit: int) -> Sequence[Any]:
        index = self._page.feed.index
        return await asyncio.to_thread(index.page, wanted, limit=limit)

    async def _message(self, client: str, request: str) -> ChatMessage:
        known = self._ended.get(request)
        if known is not None:
            self._ended.move_to_end(request)
            return known
        try:
            story = await self._stories.read(request)
        except NotFound:  # no guard has decided it, or the log has dropped it
            return ChatMessage(request)
        happened = story.happened
        is_open = not isinstance(happened[-1], events.Ended)
        found = ChatMessage(
            request,
            said_in(happened, client),
            is_open,
            happened[-1].n,
            tuple(queue.waiting_in(happened, client)) if is_open else (),
        )
        if not is_open:
            self._ended[request] = found
            while len(self._ended) > _KEPT:
                self._ended.popitem(last=False)
        return found

    async def begun(self, client: Client, request: str, body: bytes) -> None:
        """Wait until a message is in the log, for a while. Raises SubmitRejected, UsageWrong."""
        waiting = [
            asyncio.create_task(self._stored(request)),
            asyncio.create_task(client.wait(request)),  # it raises a rejection
        ]
        try:
            done, _ = await asyncio.wait(
                waiting, timeout=self._page.options.limits.begun_s, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                each.result()
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        with contextlib.suppress(NotFound):
            first = next(
                event
                for event in (await self._stories.read(request)).happened
                if isinstance(event, events.RequestOpened | events.RequestRefused)
            )
            if first.digest != codec.body_digest(body):
                raise UsageWrong("this form was sent before, with another text: the new text was not sent")

    async def _stored(self, request: str) -> None:
        head = JetStreamLog(self._page.bus, leader=False).head
        while True:
            if await head(RequestId(request)) is not None:
                return
            await asyncio.sleep(_LOOK_S)


# --- routes -----------------------------------------------------------------------------------------


def routes(page: Page) -> list[Route]:
    chats = Chats(page)

    async def shown(request: Request, given: Mapping[str, str] | None = None, wrong: str = "") -> Response:
        client = await chats.client()
        fields = request.query_params if given is None else given
        name = _named(fields.get("in", ""))
        sent = fields.get("sent")
        messages = await chats.messages(client.name, name, sent and log.checked_id(sent)) if name else []
        pending = [each for each in messages if each.is_open]
        return page.render(
            request,
            "talk.html" if is_piece(request) else "chat.html",
            status=400 if wrong else 200,
            name=name or f"chat-{secrets.token_hex(4)}",
            messages=messages,
            pending=pending,
            sign="-".join(f"{each.request}.{each.head}" for each in messages[-3:]),
            field_for=field_for,
            next=client.new_id(),
            own=client.name,
            agents=() if messages else sorted((await queue.people_of(page.bus)).agents),
            others=() if name else await chats.conversations(client.name),
            given=given or {},
            wrong=wrong,
        )

    async def one(request: Request) -> Response:
        return await shown(request)

    async def acted(request: Request) -> Response:
        form, act = request.scope["mesh.form"], _ACTS.get(request.path_params["act"])
        if act is None:
            raise UsageWrong(f"in a chat one can {', '.join(_ACTS)}")
        name = _named(form.get("in", ""))
        if not name:
            raise UsageWrong("the form does not name its conversation; nothing was done")
        sent = log.checked_id(form.get("request", ""))
        try:
            words = await act(page, chats, form, sent, page.person(request))
        except (UsageWrong, ReplyInvalid, SubmitRejected) as wrong:
            return await shown(request, dict(form) | {"in": name}, str(wrong))
        return page.done(request, f"/chat?{urlencode({'in': name, 'sent': sent})}", words)

    return [Route("/chat", one), Route("/chat/{act}", acted, methods=["POST"])]


def _named(name: str) -> str:
    """Return the name of a conversation; empty for a new one. Raises UsageWrong."""
    name = name.strip()
    if len(name) > MOST_NAME:
        raise UsageWrong(f"a conversation's name has {MOST_NAME} characters at most")
    return name


async def _say(page: Page, chats: Chats, form: Mapping[str, str], request: str, by: str) -> str:
    client, text = await chats.client(), form.get("text", "").replace("\r\n", "\n").strip()
    if not text:
        raise UsageWrong("write a message")
    if not request.startswith(f"{client.name}_"):
        raise UsageWrong("the form is another operator's; nothing was sent")
    to = form.get("to", "").strip()
    wanted = Submit(
        text=text,
        to=AgentName(to) if to else None,
        conversation=_named(form["in"]),
        continue_with="last",
    )
    await client.submit_whole(wanted, request=request)
    await chats.begun(client, request, codec.encode_whole(wanted))
    return ""


async def _reply(page: Page, chats: Chats, form: Mapping[str, str], request: str, by: str) -> str:
    n = number(form, "n", None)
    if n is None:
        raise UsageWrong("the form does not name the question; nothing was sent")
    return short(await reply(await page.operator(), request, form, by, n), 200)


async def _cancel(page: Page, chats: Chats, form: Mapping[str, str], request: str, by: str) -> str:
    await control.cancel(await page.operator(), request, by=by, reason="cancelled in the chat")
    return "the message was cancelled"


_ACTS = {"say": _say, "reply": _reply, "cancel": _cancel}
