"""Withholding: what an inbox event shows its reader, and what is kept back for the next who may see it."""

from typing import NamedTuple

from msgspec.structs import replace

from protocol.carry import Load, divide
from protocol.domain.stash import Stash, flat
from protocol.ledger import Ledger
from protocol.stamp import stamp
from protocol.wire.events import FactsWithheld, Withheld
from protocol.wire.handoff import Handoff
from protocol.wire.ids import HUMAN, NOBODY, Cause
from protocol.wire.values import equal
from protocol.world import World


class Placed(NamedTuple):
    """A handoff as its reader sees it."""

    handoff: Handoff
    withheld: Withheld | None


def place(
    ledger: Ledger, world: World, cause: Cause, handoff: Handoff, load: Load, request: str = ""
) -> Placed | FactsWithheld:
    """Return the handoff as its reader may see it, or the event that first has to keep the rest.

    `facts.withheld` is due where the ledger does not hold what the reader does not see. People are cleared
    for everything: who reads the `human` queue reads the log.
    """
    target = world.grounds.target
    everything = handoff.to_agent == HUMAN or target is None
    divided = divide(load, None if everything or target is None else target.clearance)
    own, rest = handoff.constraints.must_carry, divided.rest
    kept_back = tuple(
        key for key in own if key in rest.facts and divided.facts.get(key) is not rest.facts[key][0]
    )
    shown = replace(
        handoff,
        facts=tuple(divided.facts.values()),
        artifacts=tuple(divided.artifacts.values()),
        constraints=replace(
            handoff.constraints, must_carry=tuple(key for key in own if key not in kept_back)
        ),
    )
    if _holds(ledger.stash_beside(shown, cause), Stash(rest.facts, rest.artifacts, kept_back)):
        return Placed(shown, divided.withheld)
    return stamp(
        FactsWithheld,
        ledger,
        world,
        cause,
        NOBODY,
        request or str(ledger.request),
        target=handoff.to_agent,
        facts=flat(rest.facts.values()),
        artifacts=flat(rest.artifacts.values()),
        must_carry=kept_back,
    )


def _holds(kept: Stash, wanted: Stash) -> bool:
    return (
        equal(kept.facts, wanted.facts)
        and equal(kept.artifacts, wanted.artifacts)
        and set(kept.must_carry) == set(wanted.must_carry)
    )
