"""The members in a fleet file: agents, clients, operators and viewers, with keys, limits and quotas."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from mesh.bus.credentials import is_public_key
from mesh.bus.streams import MIB, Limits, memory_of, proposals_of, steps_of
from mesh.fleet.near_miss import Strict
from mesh.fleet.scaling import AgentScale
from protocol.wire import config
from protocol.wire.prices import DAY_S, MOST_TIMES


def _public_key(said: str) -> str:
    if not is_public_key(said):
        raise PydanticCustomError("nkey", "not a user's public key: it begins with U and has 56 characters")
    return said


PublicKey = Annotated[str, AfterValidator(_public_key)]


class Member(Strict):
    """A member with credentials."""

    nkey: PublicKey | None = None
    """Public key. If there is none, a key is created beside the fleet file."""
    description: str = ""


_LIMIT = {"messages": "messages", "mib": "bytes", "steps": "steps", "steps_mib": "step_bytes"}


_SIZED = {"mib": proposals_of, "steps_mib": steps_of}


class LimitsSection(Strict):
    """Numbers of mesh.bus.streams.Limits."""

    messages: int | None = Field(default=None, ge=1, le=1 << 40)
    mib: int | None = Field(default=None, ge=1, le=1 << 20)

    def over(self, limits: Limits) -> Limits:
        """Return `limits` with the numbers that this table sets."""
        given = {
            _LIMIT[name]: number * (MIB if name.endswith("mib") else 1)
            for name, number in self.model_dump(exclude_none=True).items()
        }
        return limits._replace(**given)


class AgentLimitsSection(LimitsSection):
    """The same, plus limits of an agent's journals."""

    steps: int | None = Field(default=None, ge=1, le=1 << 40)
    steps_mib: int | None = Field(default=None, ge=1, le=1 << 20)


class Sender(Member):
    """A member whose messages guards decide."""

    limits: LimitsSection = LimitsSection()
    """Its own limits, where they differ from the general ones."""


def given_sizes(senders: Mapping[str, Sender], limits: LimitsSection, *, of_memory: bool) -> frozenset[str]:
    """Return the streams whose size (bytes) the file gives, for all members or for one.

    Args:
        limits: those of all members.
        of_memory: True if the file gives the size of clients' memory.
    """
    given = set[str]()
    for name, section in senders.items():
        fields = limits.model_fields_set | section.limits.model_fields_set
        given |= {stream(name) for field, stream in _SIZED.items() if field in fields}
        given |= {memory_of(name)} if of_memory else set()
    return frozenset(given)


class QuotaSection(Strict):
    """How much of the log a client may use; numbers of protocol.wire.config.Quota."""

    open_requests: int | None = Field(default=None, ge=1, le=config.MOST_OPEN)
    mib_per_hour: float | None = Field(default=None, gt=0, le=config.MOST_MIB)

    def over(self, quota: config.Quota) -> config.Quota:
        return msgspec.structs.replace(quota, **self.model_dump(exclude_none=True))


class Submitter(Sender):
    """A member that submits requests."""

    quota: QuotaSection = QuotaSection()
    """Its own quota, where it differs from the general one."""


class BreakerSection(Strict):
    """Rules that differ from the general ones; numbers of protocol.domain.breaker.BreakerRules."""

    failures: int | None = Field(default=None, ge=0, le=MOST_TIMES)
    window_s: float | None = Field(default=None, gt=0, le=DAY_S)
    open_s: float | None = Field(default=None, gt=0, le=DAY_S)
    trial_s: float | None = Field(default=None, gt=0, le=DAY_S)

    def over(self, rules: config.BreakerRules) -> config.BreakerRules:
        return msgspec.structs.replace(rules, **self.model_dump(exclude_none=True))


def _listed(said: object) -> object:
    if not isinstance(said, list):
        raise PydanticCustomError("labels", 'say a list of labels, as in ["pii"]')
    return said


Labels = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class AgentSection(Sender):
    limits: AgentLimitsSection = AgentLimitsSection()
    module: str | None = None
    """`MODULE:NAME` of its code, used to start a whole fleet."""
    clearance: Labels = ()
    intents: tuple[str, ...] | None = None
    actions: tuple[str, ...] | None = None
    to: tuple[str, ...] | None = None
    fallback: str | None = None
    carries: Mapping[str, Mapping[str, Any] | str] = {}
    """By target: the form of the facts that a transfer hands over, or the JSON file that has it."""
    breaker: BreakerSection = BreakerSection()
    scale: AgentScale | None = None
    """How many processes it has, by what waits for it; left out: as many as you start."""
