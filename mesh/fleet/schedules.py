"""`[schedules.NAME]` of the fleet file: a request that begins by the calendar."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import Field

from mesh.fleet.near_miss import Strict
from mesh.service.cron import CronInvalid, parse_calendar
from protocol.wire.commands import Submit
from protocol.wire.handoff import Fact
from protocol.wire.ids import NAME_RULE, AgentName, is_name
from protocol.wire.schedule import (
    CATCH_UP_S,
    LONGEST_CATCH_UP_S,
    SHORTEST_CATCH_UP_S,
    Overlap,
    Schedule,
    schedule_mistakes,
)


class ScheduleSection(Strict):
    """What is submitted, in whose name, and when."""

    client: str
    """The client or operator that submits it."""
    cron: str
    zone: str = "UTC"
    overlap: Overlap = "skip"
    catch_up_s: float = Field(default=CATCH_UP_S, ge=SHORTEST_CATCH_UP_S, le=LONGEST_CATCH_UP_S)
    text: str
    to: str | None = None
    intent: str | None = None
    facts: Mapping[str, Any] = {}
    policy: str = "default"
    conversation: str | None = None

    @property
    def schedule(self) -> Schedule:
        return Schedule(
            client=AgentName(self.client),
            cron=self.cron,
            zone=self.zone,
            overlap=self.overlap,
            catch_up_s=self.catch_up_s,
            submit=Submit(
                text=self.text,
                to=None if self.to is None else AgentName(self.to),
                intent=self.intent,
                facts=tuple(Fact(key=key, value=value) for key, value in self.facts.items()),
                policy=self.policy,
                conversation=self.conversation,
            ),
        )

    def mistakes(
        self, name: str, submitters: Collection[str], agents: Collection[str], policies: Collection[str]
    ) -> list[str]:
        """Return what is wrong with the schedule `name`.

        Args:
            submitters: the fleet's clients and operators.
        """
        wrong = [] if is_name(name) else [f"the name of a schedule is {NAME_RULE}"]
        if self.client not in submitters:
            wrong.append(f"client: {self.client!r} is no client or operator of the fleet")
        if self.to is not None and self.to not in agents:
            wrong.append(f"to: {self.to!r} is no agent of the fleet")
        if self.policy not in policies:
            wrong.append(f"policy: there is no policy {self.policy!r}")
        try:
            parse_calendar(self.cron, self.zone)
        except CronInvalid as invalid:
            wrong.append(str(invalid))
        wrong += schedule_mistakes(self.schedule)
        return [f"schedules.{name}: {each}" for each in wrong]
