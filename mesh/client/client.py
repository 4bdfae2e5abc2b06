"""The client: submits a request, waits for its answer, follows it. Any number of clients may share a name.

A submit is done once JetStream has stored it. The answer is read by subject, under the client's own name, and
only that is authoritative; a note is just a hint to look. So a caller that misses every note still finds the
answer, at most `POLL_S` later.
"""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, aclosing
from typing import Any, Self, TypeVar, overload

from mesh.agent.values import Facts, facts_of
from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import NO_FILES, RenewableKey, TlsFiles
from mesh.bus.lane import Lane
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import get
from mesh.bus.stores import read_questions
from mesh.client.follow import (
    ClientView,
    Following,
    Outcome,
    Question,
    Replying,
    Requested,
    outcome_of,
    questions_in,
)
from mesh.client.submitted import SubmitRejected, Submitted
from mesh.errors import NoResponders, OutcomeUnknown, Unreachable
from mesh.service.logs import get_logger
from mesh.tasks import Alarms
from mesh.telemetry import tracing
from protocol.wire import codec, events, subjects
from protocol.wire.commands import Cancel, Control, ReplyToAsk, Submit, asked_for
from protocol.wire.handoff import Artifact, Constraints
from protocol.wire.ids import AgentName, ContinueWith, RequestId, TurnId, request_id
from protocol.wire.records import Notice

_log = get_logger(__name__)
T = TypeVar("T")

POLL_S = 1.0
"""How long a caller waits for a note before it polls."""
_AGAIN_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_LEADERLESS_S = (*_AGAIN_S, 2.0, 2.0, 2.0, 2.0, 2.0)
"""Pauses while no stream takes it. Replicas elect a new leader after 4 to 9 s (nats-server, `raft.go`)."""


class Client:
    """One client's connection. Made by `Client.connect`; `async with` closes it."""

    def __init__(self, bus: Bus, name: str) -> None:
        tracing.probe()
        self._bus = bus
        self.name = AgentName(name)
        self._wakes: dict[str, set[asyncio.Event]] = {}
        self._polls = Alarms(lambda: POLL_S)
        self._lane = Lane(bus, name)
        self._on_news: list[Callable[[str], object]] = []
        self._submitted = Submitted()

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        name: str,
        seed: str | RenewableKey | None = None,
        wait: bool = False,
        tls: TlsFiles = NO_FILES,
    ) -> Self:
        """Return a client.

        Raises Unreachable (unless `wait`), TlsFailed, AuthenticationFailed, BadAddress, Denied.
        """
        bus = await connect(url, name=name, seed=seed, wait=wait, tls=tls)
        try:
            return await cls.on(bus, name)
        except BaseException:  # also when cancelled: no other code has this connection
            await bus.close()
            raise

    @classmethod
    async def from_env(cls, *, name: str | None = None, wait: bool = False) -> Self:
        """Return a client with the bus and the key that commands find here (`mesh.settings`).

        They come from the environment (`NATS_URL`, `MESH_NAME`, `MESH_CREDENTIALS`, `MESH_TLS_…`), or else
        from the `mesh dev` that runs in this folder or above it, up to the nearest `mesh.toml`.

        Raises NoCredentials, SettingsInvalid, and what `connect` raises.
        """
        from mesh.settings import Flags, find_access

        access = find_access(("client", "operator"), Flags(name=name))
        seed = RenewableKey(lambda: access.seed)
        return await cls.connect(access.url, name=access.name, seed=seed, tls=access.tls, wait=wait)

    @classmethod
    async def on(cls, bus: Bus, name: str) -> Self:
        """Return a client on an existing connection."""
        client = cls(bus, name)
        await bus.subscribe(subjects.notes_to(name), client._on_note)
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._bus.close()

    # --- submitting -------------------------------------------------------------------------------

    def new_id(self) -> RequestId:
        """Return a new request id of this client."""
        return request_id(self.name, time.time_ns() // 1_000_000, os.urandom(10))

    @overload
    async def submit(
        self,
        text: str,
        *,
        to: str | None = None,
        intent: str | None = None,
        facts: Facts = None,
        artifacts: Iterable[Artifact] = (),
        constraints: Constraints | None = None,
        policy: str = "default",
        conversation: str | None = None,
        continue_with: ContinueWith | None = None,
        rerun_of: str | None = None,
        request: str | None = None,
        answer_type: None = None,
    ) -> RequestId: ...

    @overload
    async def submit(
        self,
        text: str,
        *,
        to: str | None = None,
        intent: str | None = None,
        facts: Facts = None,
        artifacts: Iterable[Artifact] = (),
        constraints: Constraints | None = None,
        policy: str = "default",
        conversation: str | None = None,
        continue_with: ContinueWith | None = None,
        rerun_of: str | None = None,
        request: str | None = None,
        answer_type: type[T],
    ) -> Requested[T]: ...

    async def submit(
        self,
        text: str,
        *,
        to: str | None = None,
        intent: str | None = None,
        facts: Facts = None,
        artifacts: Iterable[Artifact] = (),
        constraints: Constraints | None = None,
        policy: str = "default",
        conversation: str | None = None,
        continue_with: ContinueWith | None = None,
        rerun_of: str | None = None,
        request: str | None = None,
        answer_type: Any = None,
    ) -> Any:
        """Store a request and return its id. After that, no crash keeps it from being decided.

        Args:
            facts: values by key, or `Fact`s with labels. Values may be pydantic objects, dataclasses and
                structs.
            conversation: the request begins with the facts that this client's earlier requests left in it.
            continue_with: without `to`, whether the agent that spoke `last` in the conversation gets it, or
                the `entry` agent; by default the policy decides.
            rerun_of: the request that this one repeats; only recorded and shown.
            request: an id made earlier. The same id with the same content is the same request, so a caller
                may try again after an OutcomeUnknown.
            answer_type: this client's `wait` and `follow` return the answer as this type, validated by
                pydantic.
        """
        submit = Submit(
            text=text,
            to=None if to is None else AgentName(to),
            intent=intent,
            facts=facts_of(facts),
            artifacts=tuple(artifacts),
            constraints=constraints or Constraints(),
            policy=policy,
            conversation=conversation,
            continue_with=continue_with,
            rerun_of=None if rerun_of is None else RequestId(rerun_of),
        )
        return await self.submit_whole(submit, request=request, answer_type=answer_type)

    async def submit_whole(
        self, submit: Submit, *, request: str | None = None, answer_type: Any = None
    ) -> RequestId:
        """Store a ready-made submit, and return the request's id. Otherwise like `submit`."""
        chosen = self.new_id() if request is None else RequestId(request)
        body = codec.encode_whole(submit)
        self._submitted.add(chosen, codec.body_digest(body), answer_type)
        with self._sending(tracing.SUBMIT, "mesh.prop.{sender}.{request}", chosen, submit):
            if request is None:
                self._submitted.expect(chosen)
            if not await self._lane.is_decided(chosen, body, tracing.headers() or None):
                await self._store(subjects.prop(self.name, chosen), body)
        return chosen

    def _sending(
        self, name: str, template: str, request: str, what: Submit | Control
    ) -> AbstractContextManager[Any]:
        """Open the span of a message that this client stores."""
        if not tracing.traced():
            return tracing.OFF
        attributes = {
            **tracing.messaging(tracing.SEND, template, sender=self.name, request=request),
            tracing.REQUEST: request,
            tracing.CONVERSATION: request,
            tracing.FROM: self.name,
            tracing.MOVE: asked_for(what),
        }
        return tracing.span(name, tracing.PRODUCER, attributes=attributes)

    async def _store(self, subject: str, body: bytes) -> None:
        """Store a message, and retry after an unknown outcome: a message stored twice is decided once."""
        for tries in itertools.count():
            try:
                await self._bus.publish_durable(subject, body, tracing.headers() or None)
            except (OutcomeUnknown, Unreachable) as failed:
                pauses = _LEADERLESS_S if isinstance(failed, NoResponders) else _AGAIN_S
                if tries >= len(pauses):
                    raise
                await asyncio.sleep(pauses[tries])
            else:
                return

    async def cancel(self, request: str, reason: str = "", *, by: str = "") -> None:
        """Ask to cancel one of this client's own requests."""
        await self.control(request, Cancel(id=os.urandom(8).hex(), by=by, reason=reason))

    async def reply(self, question: Question, value: Any, *, by: str = "", id_: str = "") -> None:
        """Answer an ask. Raises ReplyInvalid if the value does not match its schema; then nothing is sent.

        An unusable schema is the asker's mistake, and does not keep the reply from being sent.

        Args:
            id_: of the reply, in this request; by default a new one. A guard takes one of an id.
        """
        from mesh.agent._reply_schema import SchemaUnusable, check_reply

        try:
            await asyncio.to_thread(check_reply, question.schema, value)
        except SchemaUnusable as unusable:
            _log.warning("reply_unchecked", request=question.request, detail=str(unusable))
        turn, round_ = TurnId(question.turn), question.round
        reply = ReplyToAsk(id=id_ or os.urandom(8).hex(), by=by, turn=turn, round=round_, value=value)
        await self.control(question.request, reply)

    async def control(self, request: str, message: Control) -> None:
        """Store a control message. Its outcome is visible in the request."""
        with self._sending(tracing.SEND_CONTROL, "mesh.ctl.{sender}.{request}", request, message):
            await self._store(subjects.ctl(self.name, request), codec.encode_whole(message))

    # --- waiting ----------------------------------------------------------------------------------

    async def latest(self, request: str) -> events.AnyEvent | None:
        """Return the last event addressed to this client in a request; None if there is none yet."""
        found = await get(self._bus, "LOG", subjects.evt(self.name, request))
        return None if found is None else codec.decode_event(found.data)

    async def questions(self, request: str) -> tuple[Question, ...]:
        """Return a request's open questions to this client, oldest first. Raises BusError."""
        event = await self.latest(request)
        return () if event is None else await self._questions(event)

    async def _questions(self, event: events.AnyEvent) -> tuple[Question, ...]:
        """Return the open questions, given the newest event that is addressed to this client."""
        if not isinstance(event, events.TurnSuspended):
            return ()
        return questions_in(event.request, await read_questions(self._bus, self.name, event.request))

    @overload
    async def wait(
        self,
        request: Requested[T],
        *,
        timeout_s: float | None = None,
        on_question: Callable[[Question], Awaitable[Any]] | None = None,
    ) -> Outcome[T]: ...

    @overload
    async def wait(
        self,
        request: str,
        *,
        timeout_s: float | None = None,
        on_question: Callable[[Question], Awaitable[Any]] | None = None,
    ) -> Outcome: ...

    async def wait(
        self,
        request: str,
        *,
        timeout_s: float | None = None,
        on_question: Callable[[Question], Awaitable[Any]] | None = None,
    ) -> Outcome:
        """Return how a request ended.

        Args:
            on_question: called once for each ask to this client; it returns the reply. Several calls run
                concurrently if several agents ask. A call is cancelled when its question is over: answered
                elsewhere, expired, or ended with its turn or the request.

        Raises TimeoutError, and SubmitRejected if the guard cannot process the request. Raises ReplyInvalid
        if a question's schema does not allow what `on_question` returns, and AnswerInvalid for an answer that
        is not of the submit's `answer_type`.
        """
        async with (
            asyncio.timeout(timeout_s),
            aclosing(self.addressed(request)) as addressed,
            Replying(self, on_question) as replying,
        ):
            while True:
                told = asyncio.ensure_future(anext(addressed))
                try:
                    while not told.done():
                        replying.raise_failed()
                        await asyncio.wait({told, *replying.tasks}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    told.cancel()
                    await asyncio.gather(told, return_exceptions=True)
                event, questions = told.result()
                if isinstance(event, events.Ended):
                    return self.as_asked(outcome_of(event))
                await replying.take(questions)

    async def addressed(self, request: str) -> AsyncGenerator[ClientView, None]:
        """Yield a request's state for this client, whenever there is news. Never ends.

        After this client's own submit, it checks when a note has come, or after `POLL_S`. Raises
        SubmitRejected.
        """
        wake = asyncio.Event()
        self._wakes.setdefault(request, set()).add(wake)
        seen: ClientView | None = None
        try:
            if self._submitted.take_silent(request):
                await self._woken(wake)
            while True:
                wake.clear()
                found = await self._look(request)
                self._submitted.raise_if_rejected(request, answered=found is not None)
                if found is not None and found != seen:
                    seen = found
                    yield found
                    continue
                await self._woken(wake)
        finally:
            self._wakes[request].discard(wake)
            if not self._wakes[request]:
                del self._wakes[request]

    async def _woken(self, wake: asyncio.Event) -> None:
        """Wait for a note, at most `POLL_S`."""
        poll = self._polls.set(wake.set)
        try:
            await wake.wait()
        finally:
            poll.cancel()

    def follow(self, request: str, *, viewer: Bus | None = None) -> Following:
        """Follow a request as it proceeds; the last item is its `Outcome`.

        It begins with what is known: the events addressed to this client; with a viewer's connection, every
        event and the steps that a running turn has journaled. Live notes of turns follow (`AgentNote`), some
        of which may be lost.
        """
        return Following(self, self._bus, request, viewer)

    def as_asked(self, outcome: Outcome) -> Outcome:
        """Return an outcome with its answer converted to the submit's `answer_type`. Raises AnswerInvalid."""
        return self._submitted.as_asked(outcome)

    def on_news(self, call: Callable[[str], object]) -> None:
        """Call `call` with a request's id when a note says that there may be news. Notes may be lost."""
        self._on_news.append(call)

    @property
    def connected(self) -> bool:
        """True if there is a connection to the bus at the moment."""
        return self._bus.connected

    def rejection(self, request: str) -> SubmitRejected | None:
        """Return the guard's rejection of this client's own submit, if a notice of it has come."""
        return self._submitted.rejection(request)

    def has_submitted(self, request: str) -> bool:
        """Return True if this object submitted a request, as far as it remembers."""
        return request in self._submitted

    async def _look(self, request: str) -> ClientView | None:
        try:
            event = await self.latest(request)
            return None if event is None else ClientView(event, await self._questions(event))
        except (OutcomeUnknown, Unreachable):
            return None  # the bus is away; the next poll tries again

    def _on_note(self, message: Incoming) -> None:
        """Wake the callers that wait for this request, and remember a notice of rejection.

        Another client's reply subject can put anything here, so a note is only a hint.
        """
        request = message.subject.rpartition(".")[2]
        self._submitted.hear(request)
        notice = codec.readable(message.data, Notice) if message.data else None
        if notice is not None and self._submitted.take(notice):
            self._wake(notice.request)
        self._wake(request)
        for call in self._on_news:
            call(request)

    def _wake(self, request: str) -> None:
        for wake in self._wakes.get(request, ()):
            wake.set()
