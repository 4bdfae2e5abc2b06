"""A request as it grows: its events, and the steps of its turns, as they come."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence

from mesh.bus.connection import Bus
from mesh.bus.reader import up_to
from mesh.bus.streams import steps_of
from mesh.cli.output import remark
from mesh.client.journals import Step, journaled, journals_in
from mesh.ops.requests import NOT_THERE, check_numbers, has_ended, why_not_there
from protocol.wire import codec, subjects
from protocol.wire.events import AnyEvent

_LOOK_S = 0.2
_QUIET_LOOKS = 10
"""Looks in vain after which it is said that a request is not there."""


class Steps:
    """The steps of a request's turns, each shown once: as soon as it is journaled, and before what it led to.

    Args:
        show: takes the next step.
    """

    def __init__(self, bus: Bus, request: str, show: Callable[[Step], None]) -> None:
        self._bus, self._request, self._show = bus, request, show
        self._from_seq: dict[str, int] = {}
        """By agent that had a turn."""
        self._known = set[tuple[str, str, str]]()
        self._waiting: list[Step] = []
        """Read, and not shown."""
        self._whose: dict[str, str] = {}
        self.passed_over = set[str]()

    async def look(self, happened: Sequence[AnyEvent]) -> None:
        """Read what was journaled since the last look.

        Args:
            happened: the events since then.

        Raises BusError.
        """
        for agent in journals_in(happened).values():
            self._from_seq.setdefault(agent, 1)
        for agent, from_seq in self._from_seq.items():
            subject = subjects.journals(self._request, agent)
            part = await up_to(self._bus, steps_of(agent), subject, from_seq)
            for journal in sorted({stored.subject.split(".")[4] for stored in part}):
                found = await journaled(
                    self._bus, self._request, (agent,), journal, passed_over=self.passed_over
                )
                self._waiting += (step for step in found if (agent, journal, step.name) not in self._known)
                self._known |= {(agent, journal, step.name) for step in found}
            if part:
                self._from_seq[agent] = part[-1].seq + 1

    def show_until(self, at: int | None = None) -> None:
        """Show the steps of turns that were opened, up to a time (UTC µs) if one is given."""
        left = []
        for step in self._waiting:
            whose = self._whose.get(step.journal)
            if whose is None or (at is not None and step.record.at > at):
                left.append(step)
            elif whose == step.agent:
                self._show(step)
            else:  # anybody may write under any turn's id
                self.passed_over.add(f"{step.agent} {step.journal} {step.name}")
        self._waiting = left

    def opened_by(self, event: AnyEvent) -> None:
        """Learn from an event whose turn it opens."""
        self._whose |= journals_in((event,))


async def story_so_far(
    bus: Bus, request: str, *, missing_told: bool = False, steps: Steps | None = None
) -> AsyncIterator[Sequence[bytes]]:
    """Yield a request's events each time that there are more of them; the last time when it has ended.

    Args:
        missing_told: whether it was said already that the request is not in the log.
        steps: are shown meanwhile, too.

    Raises Impossible where one of them is missing, and BusError when the bus cannot be read at the
    beginning; one that goes away later is waited for.
    """
    bodies: list[bytes] = []
    from_seq, looks = 1, 0
    part = await up_to(bus, "LOG", subjects.evt_of(request), from_seq)
    while True:
        if steps is not None:
            happened = [codec.decode_event(stored.data) for stored in part]
            look = functools.partial(steps.look, happened)  # after the events: what led to them is there
            await bus.retry_unavailable(look)
        for kept in part:
            check_numbers(request, [kept.data], first=len(bodies))
            bodies.append(kept.data)
            if steps is not None:
                event = codec.decode_event(kept.data)
                steps.show_until(event.at)
                steps.opened_by(event)
            yield bodies
            if has_ended(kept.data):
                return
        if steps is not None:
            steps.show_until()
        if part:
            from_seq = part[-1].seq + 1
        else:
            await asyncio.sleep(_LOOK_S)
            looks += 1
        if not bodies and not missing_told and looks >= _QUIET_LOOKS:
            missing_told = True
            remark(f"mesh: {NOT_THERE.format(request)} yet; waiting{await why_not_there(bus)}")
        part = await bus.retry_unavailable(
            functools.partial(up_to, bus, "LOG", subjects.evt_of(request), from_seq)
        )
