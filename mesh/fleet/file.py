"""The fleet file, `mesh.toml` (docs/fleet-file.md): read, checked, and turned into documents and limits."""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mesh.artifacts.bucket import VARIABLES
from mesh.bus.roles import RESERVED
from mesh.bus.streams import MIB, Limits, Storage, offers_to
from mesh.errors import MeshError
from mesh.fleet.members import (
    AgentLimitsSection,
    AgentSection,
    BreakerSection,
    Labels,
    Member,
    QuotaSection,
    Sender,
    Submitter,
    given_sizes,
)
from mesh.fleet.near_miss import Strict, in_words, with_suggestion
from mesh.fleet.scaling import AgentScale, ScaleSection, scale_mistakes
from mesh.fleet.schedules import ScheduleSection
from mesh.settings import FILE_NAME, store_in
from protocol.wire import config, documents
from protocol.wire.handoff import Budget
from protocol.wire.ids import HUMAN, AgentName, is_name
from protocol.wire.prices import DAY_S, LARGEST_AMOUNT, LONGEST_S, assumed_cache_prices
from protocol.wire.schedule import Schedule

LISTED = "listed"
"""Takes the place of a model's price: use the vendor's list price at setup."""


class FleetFileError(MeshError, code="fleet.invalid"):
    """The fleet file is missing or invalid. The text names every mistake, one per line."""


class LongPriceSection(Strict):
    """Numbers of protocol.wire.prices.Price, without those of long prompts.

    A missing cache price never counts as zero: protocol.wire.prices.assumed_cache_prices fills it in.
    """

    model_config = ConfigDict(strict=True)

    input: int = Field(ge=0, le=LARGEST_AMOUNT)
    output: int = Field(ge=0, le=LARGEST_AMOUNT)
    cache_read: int | None = Field(default=None, ge=0, le=LARGEST_AMOUNT)
    cache_write: int | None = Field(default=None, ge=0, le=LARGEST_AMOUNT)
    cache_write_1h: int | None = Field(default=None, ge=0, le=LARGEST_AMOUNT)

    @property
    def whole(self) -> dict[str, Any]:
        """The complete price, as the fleet document has it."""
        return assumed_cache_prices(self.input) | self.model_dump(exclude_none=True)


class PriceSection(LongPriceSection):
    """Numbers of protocol.wire.prices.Price."""

    long_from: int | None = Field(default=None, ge=0, le=LARGEST_AMOUNT)
    long: LongPriceSection | None = None

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.long_from is None) != (self.long is None):
            raise ValueError("`long_from` and `long` go together: from how many tokens on, and what then")
        return self

    @property
    def whole(self) -> dict[str, Any]:
        """The complete price, as the fleet document has it."""
        return super().whole | ({} if self.long is None else {"long": self.long.whole})


class ModelSection(Strict):
    """Numbers of protocol.wire.config.ModelLimits."""

    concurrency: int | None = Field(default=None, ge=1, le=config.MOST_AT_ONCE)
    per_minute: int | None = Field(default=None, ge=1, le=config.MOST_PER_MINUTE)


class TlsSection(Strict):
    """Files that a connection is secured with, relative to the fleet file's folder."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


Auth = Literal["nkeys", "jwt"]


class BusSection(Strict):
    """How commands in this folder get on the bus, and how its servers know who is who."""

    tls: TlsSection = TlsSection()
    auth: Auth = "nkeys"
    """How servers know members: by a list of keys in their configuration, or by claims that an operator
    signed."""


class HumanSection(Strict):
    description: str = ""
    tiers: tuple[str, ...] = ()
    """Names of the tiers that get an escalation, in order: the next one each time it is raised."""
    deadline_s: float | None = Field(default=None, gt=0, le=LONGEST_S)
    """How long people have for each decision, under every policy that sets no `human_deadline_s`."""

    @field_validator("tiers")
    @classmethod
    def _names(cls, tiers: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(tiers)) != len(tiers) or not all(map(is_name, tiers)):
            raise ValueError("tiers are different names of 1 to 24 of a-z 0-9 -")
        return tiers


def _store(said: str) -> str:
    url = urlsplit(said) if "://" in said else None
    if url is not None and (url.scheme not in VARIABLES or not url.netloc):
        kinds = ", ".join(f"{scheme}://…" for scheme in VARIABLES)
        raise PydanticCustomError("store", f"a store is a folder, or a bucket at {kinds}")
    if url is not None and (url.username or url.password or url.query):
        raise PydanticCustomError("store", "credentials of a store come from the environment of each process")
    return said


def _archive(said: str) -> str:
    if said and not said.startswith("file:///") and ("://" not in said or said.startswith("file:")):
        kinds = ", ".join(f"{scheme}://…" for scheme in VARIABLES)
        raise PydanticCustomError("archive", f"an archive is file:///folder, or a bucket at {kinds}")
    return said if said.startswith("file:") else _store(said)


class ArtifactsSection(Strict):
    """Where artifacts are kept."""

    store: Annotated[str, AfterValidator(_store)] = ""
    """A bucket's URL, or a folder, relative to the fleet file's."""


class LogSection(Strict):
    max_age_days: float = Field(default=30.0, gt=0, le=LONGEST_S / DAY_S)
    archive: Annotated[str, AfterValidator(_archive)] = ""
    """URL of the archive to which `mesh log archive` adds what has ended."""
    max_bytes: int = Field(default=-1, ge=-1, le=LARGEST_AMOUNT)
    replicas: int = Field(default=1, ge=1, le=5)


class MemorySection(Strict):
    """Settings of conversations' memory."""

    max_age_days: float = Field(default=30.0, gt=0, le=LONGEST_S / DAY_S)
    mib: int = Field(default=8, ge=1, le=1 << 20)
    """For each client."""


class LeaseSection(Strict):
    agent_s: float = Field(default=config.LEASE_S, ge=config.SHORTEST_LEASE_S, le=config.LONGEST_LEASE_S)
    guard_s: float = Field(
        default=config.GUARD_LEASE_S, ge=config.SHORTEST_LEASE_S, le=config.LONGEST_LEASE_S
    )


class GuardSection(Strict):
    """How guards share their work."""

    partitions: int = Field(default=config.PARTITIONS, ge=1, le=config.MOST_PARTITIONS)
    """Fixed for a mesh's life."""
    lane: bool = True
    """True if senders may ask guards directly, over core NATS."""


class FleetFile(Strict):
    """The whole file. `path` is where it was read from."""

    name: str
    entry: str
    url: str | None = None
    """The bus's URL, for commands in this folder that name no other."""
    bus: BusSection = BusSection()
    agents: Mapping[str, AgentSection] = {}
    clients: Mapping[str, Submitter] = {}
    operators: Mapping[str, Submitter] = {}
    viewers: Mapping[str, Member] = {}
    human: HumanSection | None = None
    policies: Mapping[str, Any] = {}
    schedules: Mapping[str, ScheduleSection] = {}
    prices: Mapping[str, Any] = {}
    models: Mapping[str, ModelSection] = {}
    labels: Mapping[str, Labels] = {}
    artifacts: ArtifactsSection = ArtifactsSection()
    log: LogSection = LogSection()
    memory: MemorySection = MemorySection()
    lease: LeaseSection = LeaseSection()
    guard: GuardSection = GuardSection()
    limits: AgentLimitsSection = AgentLimitsSection()
    breaker: BreakerSection = BreakerSection()
    quota: QuotaSection = QuotaSection()
    scale: ScaleSection = ScaleSection()

    @property
    def fleet(self) -> config.Fleet:
        """The document that guards watch."""
        breaker, quota = self.breaker.over(config.BreakerRules()), self.quota.over(config.Quota())
        return config.Fleet(
            name=self.name,
            entry=AgentName(self.entry),
            agents={
                name: config.AgentEntry(
                    name=AgentName(name),
                    clearance=section.clearance,
                    intents=section.intents,
                    actions=section.actions,
                    to=None if section.to is None else tuple(AgentName(to) for to in section.to),
                    description=section.description,
                    fallback=None if section.fallback is None else AgentName(section.fallback),
                )
                for name, section in self.agents.items()
            },
            clients=tuple(AgentName(name) for name in self.clients),
            operators=tuple(AgentName(name) for name in self.operators),
            viewers=tuple(AgentName(name) for name in self.viewers),
            human=self.human is not None,
            tiers=() if self.human is None else self.human.tiers,
            log_max_age_s=self.log.max_age_days * DAY_S,
            memory_max_age_s=self.memory.max_age_days * DAY_S,
            lease_s=self.lease.agent_s,
            guard_lease_s=self.lease.guard_s,
            partitions=self.guard.partitions,
            lane=self.guard.lane,
            breaker=breaker,
            breakers={
                AgentName(name): section.breaker.over(breaker)
                for name, section in self.agents.items()
                if section.breaker.model_fields_set
            },
            models={
                model: config.ModelLimits(**section.model_dump(exclude_unset=True))
                for model, section in self.models.items()
            },
            labels=self.labels,
            carries={
                AgentName(name): {
                    AgentName(to): form for to, form in section.carries.items() if not isinstance(form, str)
                }
                for name, section in self.agents.items()
                if section.carries
            },
            quota=quota,
            quotas={
                AgentName(name): section.quota.over(quota)
                for name, section in {**self.clients, **self.operators}.items()
                if section.quota.model_fields_set
            },
            swarms=any(
                isinstance(policy, Mapping) and policy.get("topology") == "swarm"
                for policy in self.policies.values()
            ),
            artifacts=self.artifacts.store,
        )

    @property
    def rules(self) -> dict[str, config.Policy]:
        """Every policy by name; `default` exists even if the file does not have it."""
        limit = None if self.human is None else self.human.deadline_s
        common = {} if limit is None else {"human_deadline_s": limit}
        return {
            name: documents.parse_policy({**common, **numbers}, name)
            for name, numbers in ({"default": {}} | dict(self.policies)).items()
        }

    @property
    def planned(self) -> dict[str, Schedule]:
        """Every schedule by name."""
        return {name: section.schedule for name, section in self.schedules.items()}

    @property
    def priced(self) -> dict[str, Any]:
        """The complete prices by model id, or LISTED."""
        return {
            model: LISTED if price == LISTED else PriceSection.model_validate(price).whole
            for model, price in self.prices.items()
        }

    def _check_prices(self) -> list[str]:
        wrong = []
        for model, price in self.prices.items():
            if price == LISTED:
                continue
            said = "a price is a table, { input = …, output = … }"
            mistakes = _mistakes(PriceSection, price) if isinstance(price, Mapping) else [said]
            wrong += [f'prices.{model}: {mistake}; or say "{LISTED}"' for mistake in mistakes]
        return wrong

    @property
    def storage(self) -> Storage:
        limits = self.limits.over(Limits())
        senders: dict[str, Sender] = {**self.agents, **self.clients, **self.operators}
        return Storage(
            replicas=self.log.replicas,
            log_max_bytes=self.log.max_bytes,
            memory_bytes=self.memory.mib * MIB,
            limits=limits,
            limits_of={
                name: section.limits.over(limits)
                for name, section in senders.items()
                if section.limits.model_fields_set
            },
            given=given_sizes(senders, self.limits, of_memory="mib" in self.memory.model_fields_set),
        )

    @property
    def scales(self) -> dict[str, AgentScale]:
        """Agents whose number of processes follows what waits for them."""
        return {name: each.scale for name, each in self.agents.items() if each.scale is not None}

    @property
    def given_keys(self) -> dict[str, str]:
        """Public keys in the file itself."""
        return {name: section.nkey for name, section in self._sections.items() if section.nkey is not None}

    @property
    def _sections(self) -> dict[str, Member]:
        return {**self.agents, **self.clients, **self.operators, **self.viewers}

    def _check(self) -> list[str]:
        wrong = self._check_prices() + self._check_policies()
        uses = Counter(self.given_keys.values())
        wrong += [
            f"{name}.nkey: another has it, too" for name, key in self.given_keys.items() if uses[key] > 1
        ]
        if self.bus.auth == "jwt":
            wrong += [
                f'{name}.nkey: with [bus] auth = "jwt", `mesh setup --out` makes every key: leave it out'
                for name in self.given_keys
            ]
        for name in sorted(self._sections.keys() & RESERVED):
            wrong.append(f"{name}: this name has a key of its own in every mesh")
        submitters = {**self.clients, **self.operators}
        for name, schedule in self.schedules.items():
            wrong += schedule.mistakes(name, submitters, self.agents, {"default", *self.policies})
        fleet = self.fleet
        readers = {name for name in self.scales if offers_to(fleet, name)}
        fallbacks = {str(entry.fallback): name for name, entry in fleet.agents.items() if entry.fallback}
        wrong += scale_mistakes(
            self.scales, self.scale, policies=self.policies, readers=readers, fallbacks=fallbacks
        )
        return wrong + documents.fleet_mistakes(fleet)

    def _check_policies(self) -> list[str]:
        wrong = []
        for name, numbers in self.policies.items():
            try:
                policy = documents.parse_policy(numbers, name)
            except documents.DocumentInvalid as invalid:
                known = (*config.Policy.__struct_fields__, *Budget.__struct_fields__)
                wrong += [f"policies.{name}: {with_suggestion(each, known)}" for each in invalid.mistakes]
                continue
            wrong += self._readers_mistakes(f"policies.{name}", policy)
        return wrong

    def _readers_mistakes(self, where: str, policy: config.Policy) -> list[str]:
        """Return where a guardrail is for a reader that this fleet has not: it would never be asked."""
        readers = {*self.agents, *self.clients, *self.operators, HUMAN}
        return [
            f"{where}: guardrails[{place}].when.to: {name!r} is no agent, client or operator of this fleet"
            for place, each in enumerate(policy.guardrails)
            for name in each.when.to or ()
            if name not in readers
        ]


def _mistakes(kind: type[BaseModel], said: object) -> list[str]:
    """Return the mistakes in a part of the file."""
    try:
        kind.model_validate(said)
    except ValidationError as wrong:
        return [in_words(kind, each) for each in wrong.errors()]
    return []


def parse_fleet(text: str, source: str = FILE_NAME, folder: Path | None = None) -> FleetFile:
    """Return the fleet in `text`. Raises FleetFileError with every mistake in it.

    Args:
        folder: where the files lie that it names for forms; None: there are none.
    """
    try:
        parsed = FleetFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as wrong:
        raise FleetFileError(f"{source}: {wrong}") from wrong
    except ValidationError as wrong:
        mistakes = [in_words(FleetFile, each) for each in wrong.errors()]
        raise FleetFileError("\n".join((f"{source}:", *mistakes))) from wrong
    parsed, mistakes = _with_forms(parsed, folder)
    mistakes += parsed._check()
    if mistakes:
        raise FleetFileError("\n".join((f"{source}:", *mistakes)))
    return parsed


def _with_forms(file: FleetFile, folder: Path | None) -> tuple[FleetFile, list[str]]:
    """Return the fleet with the forms that it names by their files, and the mistakes in that."""
    agents, wrong = dict(file.agents), list[str]()
    for name, section in file.agents.items():
        forms = dict(section.carries)
        for to, named in section.carries.items():
            if not isinstance(named, str):
                continue
            where = f"agents.{name}.carries.{to}"
            try:
                read = None if folder is None else json.loads((folder / named).read_text())
            except OSError as missing:
                wrong.append(f"{where}: {named}: {missing.strerror}")
            except ValueError as unreadable:  # not JSON, or not UTF-8
                wrong.append(f"{where}: {named} is no JSON: {unreadable}")
            else:
                if isinstance(read, dict):
                    forms[to] = read
                else:
                    wrong.append(f"{where}: {named} holds no form, which is an object")
        if forms != section.carries:
            agents[name] = section.model_copy(update={"carries": forms})
    return file.model_copy(update={"agents": agents}), wrong


def load_fleet(path: Path) -> FleetFile:
    """Return the fleet file at `path` (or `path`/mesh.toml). Raises FleetFileError."""
    file = path / FILE_NAME if path.is_dir() else path
    try:
        parsed = parse_fleet(file.read_text(), str(file), file.parent)
    except OSError as missing:
        raise FleetFileError(f"{file}: {missing.strerror}") from missing
    except UnicodeDecodeError as wrong:
        raise FleetFileError(f"{file} is not UTF-8: {wrong}") from wrong
    if not parsed.artifacts.store:
        return parsed
    whole = ArtifactsSection(store=store_in(parsed.artifacts.store, file.parent))
    return parsed.model_copy(update={"artifacts": whole})
