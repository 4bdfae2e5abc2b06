"""A guard with one fault in it, otherwise the real one: `broken_guard.py FILE guard run …`.

The file names the fault, so that the next process may have another; an empty one names none.

`ack-before-append`    a message is acknowledged before anything of it is in the log
`no-compare-and-set`   an event is appended behind whatever is the head then
`stale-cache`          what a lost race should have made it forget, it goes on believing
`no-consequences`      what is due is never appended
`no-timer`             no timer is ever armed
`no-cycle-no-seal`     nobody is refused for being on the path, nor for being beneath a seal
`no-news-no-depth`     an edge may be taken again with nothing new, and a path may be of any length
`opens-twice`          that a task was opened is forgotten, once
`no-calling-off`       tasks are never called off
`tells-nobody`         nobody is told that its turn was ended
`claims-twice`         an offer may be claimed again, however often it was taken
`frozen-offers`        the time to claim an offer runs on while its request is frozen
`reading-time`         a message has the time at which it is read, and none is waited for
`one-conversation`     a request begins with what another conversation of its client remembers
`all-to-each`          each task is granted all that is left, and no plan is too large
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.consumer import Message, Puller
from mesh.bus.event_log import JetStreamLog
from mesh.cli import main
from mesh.guard import processor, queues, service, writer
from mesh.guard.cache import Cache
from mesh.guard.memory import ConversationMemory
from mesh.guard.messages import Sent
from mesh.guard.processor import RequestProcessor
from mesh.guard.writer import EventWriter
from protocol.domain import decider, ledger, plans, rules, tasks
from protocol.domain.ledger import Ledger
from protocol.domain.request_state import RequestState
from protocol.domain.turns import Segment
from protocol.wire import events
from protocol.wire.commands import Command
from protocol.wire.handoff import Rule


class GoneAway(Exception):
    """What was to be broken is no longer there: the test would break nothing, and prove nothing."""


def replace(owner: ModuleType | type, name: str, broken: Any) -> Any:
    """Put `broken` in the place of a name that a module or class uses; return what stood there.

    Raises GoneAway.
    """
    if name not in vars(owner):
        raise GoneAway(f"{owner.__name__} has no {name} any more: break something else")
    sound = vars(owner)[name]
    setattr(owner, name, broken)
    return sound


class HastyPuller(Puller):
    """Acknowledges a message before it is handled."""

    def __init__(
        self,
        bus: Bus,
        stream: str,
        consumer: str,
        handler: Callable[[Message], Awaitable[None]],
        **rest: Any,
    ) -> None:
        async def acknowledge_first(message: Message) -> None:
            await message.ack_sync()
            await handler(message)

        super().__init__(bus, stream, consumer, acknowledge_first, **rest)


class TrustingLog(JetStreamLog):
    """Appends behind the head as it is, and not as it was when the verdict was found."""

    async def append(
        self, to: str, request: str, body: bytes, *, after: int, headers: Mapping[str, str] | None = None
    ) -> int:
        head = await self.head(request)
        return await super().append(to, request, body, after=0 if head is None else head.seq, headers=headers)


def ack_before_append() -> None:
    replace(queues, "Puller", HastyPuller)


def no_compare_and_set() -> None:
    replace(service, "JetStreamLog", TrustingLog)


def stale_cache() -> None:
    replace(Cache, "drop", lambda cache, request: None)


def no_consequences() -> None:
    replace(decider, "next_wait", lambda *_: None)


def no_timer() -> None:
    async def forget(*_: Any) -> None:
        pass

    replace(writer, "arm_timer", forget)


def _never(*_: Any) -> None:
    return None


def no_cycle_no_seal() -> None:
    replace(rules, "RULES", {**rules.RULES, Rule.CYCLE: _never})
    replace(Segment, "seal", 0)


def no_news_no_depth() -> None:
    replace(rules, "_repeated_edge", _never)
    replace(rules, "RULES", {**rules.RULES, Rule.DEPTH: _never})


def opens_twice() -> None:
    opened: set[str] = set()

    def forget(ledger: Ledger, event: events.TaskOpened) -> None:
        sound(ledger, event)
        if event.id not in opened:
            opened.add(event.id)
            ledger.turns[event.lead].tasks[event.name].state = "planned"

    sound = ledger._APPLY[events.TaskOpened]
    replace(ledger, "_APPLY", {**ledger._APPLY, events.TaskOpened: forget})


def no_calling_off() -> None:
    replace(plans, "to_cancel", lambda ledger: [])


def tells_nobody() -> None:
    async def forget(*_: Any) -> None:
        pass

    replace(EventWriter, "end", forget)


def all_to_each() -> None:
    replace(plans, "shares", lambda asked, rest, keep_back: [rest for _ in asked])
    replace(rules, "RULES", {**rules.RULES, Rule.BUDGET: _never})


def claims_twice() -> None:
    replace(tasks.TaskState, "may_be_claimed", lambda task, offer: task.offer == offer and task.is_open)


def frozen_offers() -> None:
    def run_on(_: RequestState, begin: int, end: int, *most: int | None) -> int:
        return min([end, *(at for at in most if at is not None)])

    replace(RequestState, "runs_out", run_on)


def one_conversation() -> None:
    first: dict[str, str] = {}

    async def recall(memory: ConversationMemory, client: str, conversation: str, **asked: Any) -> Any:
        return await sound(memory, client, first.setdefault(client, conversation), **asked)

    sound = replace(ConversationMemory, "recall", recall)


def reading_time() -> None:
    async def nothing(*_: Any) -> bool:
        return False

    def no_other(*_: Any) -> bool:  # a message that is delivered twice would wait for itself
        return False

    def command(sent: Sent, what: Any, cause: Any, digest: str = "") -> Command:
        found: Command = sound(sent, what, cause, digest)
        return msgspec.structs.replace(found, stored=0)

    sound = replace(Sent, "command", command)
    replace(processor, "unheard", nothing)
    replace(RequestProcessor, "_waits", no_other)


MODES: dict[str, Callable[[], None]] = {
    "ack-before-append": ack_before_append,
    "no-compare-and-set": no_compare_and_set,
    "stale-cache": stale_cache,
    "no-consequences": no_consequences,
    "no-timer": no_timer,
    "no-cycle-no-seal": no_cycle_no_seal,
    "no-news-no-depth": no_news_no_depth,
    "opens-twice": opens_twice,
    "no-calling-off": no_calling_off,
    "tells-nobody": tells_nobody,
    "all-to-each": all_to_each,
    "claims-twice": claims_twice,
    "one-conversation": one_conversation,
    "reading-time": reading_time,
    "frozen-offers": frozen_offers,
}


def run(modes: Mapping[str, Callable[[], None]]) -> None:
    """Break what the file says that the first argument names, and run the command behind it."""
    if mode := Path(sys.argv.pop(1)).read_text():
        modes[mode]()
    main()


if __name__ == "__main__":
    run(MODES)
