"""The reference fleets as tests need them: fleet file, agents, samples, and the way to their records."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from sqlite3 import Connection

import agents
from agents.recruiting import database as recruiting
from agents.support import database as support
from mesh.agent.definition import Agent, load
from mesh.fleet.file import FleetFile, load_fleet
from tests.unit.agents.requests import Sample, read


class Crew:
    """A fleet under agents/."""

    def __init__(self, name: str, connected: Callable[[], AbstractContextManager[Connection]]) -> None:
        self.name = name
        self.home = Path(agents.__file__).parent / name
        self.connected = connected

    def __str__(self) -> str:
        return self.name

    @cached_property
    def file(self) -> FleetFile:
        return load_fleet(self.home)

    @cached_property
    def agents(self) -> Mapping[str, Agent]:
        return {name: load(str(section.module)) for name, section in self.file.agents.items()}

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        return read(self.home / "requests.jsonl")

    def of_kind(self, *kinds: str) -> list[Sample]:
        return [sample for sample in self.samples if sample.kind in kinds]

    @property
    def rules(self) -> str:
        return (self.home / "rules.toml").read_text(encoding="utf-8")


SUPPORT = Crew("support", support.connected)
RECRUITING = Crew("recruiting", recruiting.connected)
CREWS = (SUPPORT, RECRUITING)
