"""A stage on which everything that comes in is accounted for."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from mesh.agent._runtime import Runtime
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import every
from mesh.guard.messages import is_submit
from mesh.guard.service import Guard
from protocol.wire import codec
from protocol.wire.commands import Doubt, ReportInDoubt, id_of, submit_id
from protocol.wire.errors import Malformed
from protocol.wire.events import FactsWithheld
from protocol.wire.ids import HUMAN, AgentName, control_cause
from protocol.wire.moves import Ask, Escalate, Move
from protocol.wire.records import DeadLetter, Notice
from tests.bad_input.rubbish import Known
from tests.guard import stage
from tests.guard.stage import Stage, human_turn
from tests.servers import PATIENCE_S, eventually, queues, until

LONG_S = 120.0
FLEET = msgspec.structs.replace(
    stage.FLEET, entry=AgentName("d"), guard_lease_s=LONG_S, lease_s=LONG_S, lane=False
)
"""Nobody serves the entry agent, so that all that is counted is what the test sends. Nothing goes by a lane:
what agents propose is counted in their queues.

No lease ends on a busy machine: a message that comes again while it is being put aside is counted twice.
"""


class Sent(NamedTuple):
    """One message, as it was published."""

    kind: str
    """`prop` or `ctl`."""
    sender: str
    token: str
    body: bytes


class Scene(Stage):
    """A stage with one guard and one agent, neither of which may be replaced."""

    guarded: Guard
    served: Runtime

    async def begin(self, count: int = 8) -> Known:
        """Open requests that nobody works on, for `b`; return what there is to know of them."""
        client, b = await self.client(), await self.actor("b")
        requests = [await client.submit("hello", to="b") for _ in range(count)]
        turns = [(await b.work(request)).turn for request in requests]
        return Known(tuple(requests), tuple(turns))

    async def begin_waiting(self) -> Known:
        """Open requests that wait for somebody in every way: the client, people, a person, a settlement."""
        known, b = await self.begin(6), await self.actor("b")
        works = [await b.work(request) for request in known.requests]
        turns = list(known.turns)
        moves: list[Move] = [
            Ask(to_agent=AgentName("c1"), question="which?"),
            Ask(to_agent=HUMAN, question="which?"),
            Escalate(summary="help"),
        ]
        for request, work, move in zip(known.requests, works, moves, strict=False):
            await b.propose(request, work, move)
        doubt = ReportInDoubt(turn=works[3].turn, round=0, effect=Doubt(step="0-1", action="pay"))
        await b.say(known.requests[3], doubt)
        await self.reaches(known.requests[3], "effect.doubted")
        await self.reaches(known.requests[0], "turn.suspended")
        await self.reaches(known.requests[1], "turn.suspended")
        turns[2] = human_turn(await self.reaches(known.requests[2], "escalation.raised")).work.turn
        return Known(known.requests, tuple(turns))

    async def account_for(self, sent: list[Sent]) -> None:
        """Publish messages and find out what became of each: exactly one thing."""
        await (
            self.drained()
        )  # what was decided may come once more, if its lease ended before it was acknowledged
        senders = {message.sender for message in sent}
        heard = {name: await self._hear(name) for name in senders}
        guard, before = self.guarded, _Counts(self.guarded.decided, self.guarded.dead)
        dead_before, log_before = await self.last_seq("DEAD"), await self.last_seq("LOG")
        conf_before = await self.last_seq("CONF")
        for message in sent:
            bus = await self.bus(message.sender)
            await bus.publish_durable(f"mesh.{message.kind}.{message.sender}.{message.token}", message.body)
        await self.drained()
        letters = await self.dead_letters(after=dead_before)
        obeyed = await self.last_seq("CONF") - conf_before
        decided = guard.decided - before.decided
        assert len(letters) == guard.dead - before.dead
        assert (decided + len(letters) + obeyed) == len(sent), ("each once", decided, len(letters), obeyed)
        assert not _said(letters) - Counter(
            (f"{message.sender}.{message.token}", message.body) for message in sent
        ), "a dead letter holds where a message came from and every byte of it"
        assert all(letter.code and letter.detail for letter in letters)
        assert not any(letter.code == "guard_failed" for letter in letters)
        events = await self._events(sent, log_before)
        late = decided - events
        await until(lambda: _ended(heard.values()) >= late)
        await until(lambda: _errors(heard.values()) == len(letters))

    async def _hear(self, name: str) -> list[Notice]:
        heard: list[Notice] = []

        def listen(message: Incoming) -> None:
            if message.data:
                heard.append(msgspec.json.decode(message.data, type=Notice))

        subscription = await (await self.bus(name)).subscribe(f"mesh.note.{name}.*", listen)
        self._stack.push_async_callback(subscription.close)
        return heard

    async def _events(self, sent: Iterable[Sent], after: int) -> int:
        """Return how many events were written for these messages, withholdings left out."""
        causes = {cause for message in sent if (cause := _cause(message)) is not None}
        found = 0
        async for kept in every(await self.bus("admin"), "LOG", None, after + 1):
            event = codec.decode_event(kept.data)
            found += str(event.cause) in causes and not isinstance(event, FactsWithheld)
        return found

    async def drained_but(self, unreadable: set[str]) -> None:
        """Wait until only proposals for requests are left whose logs cannot be read, and take these away."""
        admin = await self.bus("admin")
        proposals = await queues(admin, "PROP")

        async def only_those() -> bool:
            asked = {"subjects_filter": "mesh.prop.>"}
            infos = [await admin.api(f"STREAM.INFO.{each}", asked) for each in proposals]
            left = [subject for info in infos for subject in info["state"].get("subjects") or {}]
            return {subject.rpartition(".")[2] for subject in left} <= unreadable

        await eventually(only_those)
        for each in proposals:
            await admin.api(f"STREAM.PURGE.{each}")

    async def still_works(self) -> None:
        """A sound request is decided, by the very guard and agent that met all that."""
        client = await self.client()
        assert (
            await client.wait(await client.submit("hello", to="a"), timeout_s=PATIENCE_S)
        ).answer == "done"
        assert self.alive(self.guarded)
        assert self.runs(self.served)


class _Counts(NamedTuple):
    decided: int
    dead: int


def _said(letters: Iterable[DeadLetter]) -> Counter[tuple[str, bytes]]:
    return Counter((letter.subject.split(".", 3)[3], letter.original) for letter in letters)


def _ended(heard: Iterable[list[Notice]]) -> int:
    return sum(notice.ended is not None for notices in heard for notice in notices)


def _errors(heard: Iterable[list[Notice]]) -> int:
    return sum(notice.error is not None for notices in heard for notice in notices)


def _cause(message: Sent) -> str | None:
    """Return the cause that an event for this message would name; None if it can have none."""
    try:
        if message.kind == "ctl":
            control = codec.parse_control(message.body)
            return str(control_cause(message.token, message.sender, control.id))
        if is_submit(message.body):
            return str(submit_id(message.token))
        return str(id_of(message.token, codec.parse_proposal(message.body), message.sender))
    except Malformed:
        return None
