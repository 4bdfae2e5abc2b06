"""Withholding: what an inbox event shows its reader, and what is kept back for the next who may see it."""

from typing import NamedTuple

from msgspec.structs import replace

from protocol.carry import Load, divide, summary_of
from protocol.equality import equal
from protocol.events import FactsWithheld, Withheld
from protocol.handoff import Handoff
from protocol.ids import HUMAN, NOBODY, Cause
from protocol.ledger import Ledger
from protocol.stamp import stamp
from protocol.world import World


class Placed(NamedTuple):
    """A handoff as its reader sees it."""

    handoff: Handoff
    withheld: Withheld | None


def place(
    ledger: Ledger, world: World, cause: Cause, handoff: Handoff, load: Load, request: str = ""
) -> Placed | FactsWithheld:
    """Return the handoff as its reader may see it, or the event that first has to keep the rest.

    `facts.withheld` is due where the ledger does not hold what is hidden already. People see
    everything: whoever reads the `human` queue reads the log.
    """
    target = world.grounds.target
    if handoff.to_agent == HUMAN or target is None:
        return Placed(handoff, None)
    seen, hidden = divide(load, target.clearance)
    if not hidden.facts and not hidden.artifacts:
        return Placed(handoff, None)
    own = handoff.constraints.must_carry
    kept_back = tuple(key for key in own if key in hidden.facts)
    if not _is_kept(ledger, cause, hidden, kept_back):
        return stamp(
            FactsWithheld,
            ledger,
            world,
            cause,
            NOBODY,
            request or str(ledger.request),
            target=handoff.to_agent,
            facts=hidden.fact_tuple,
            artifacts=hidden.artifact_tuple,
            must_carry=kept_back,
        )
    shown = replace(handoff.constraints, must_carry=tuple(key for key in own if key not in hidden.facts))
    return Placed(
        replace(handoff, facts=seen.fact_tuple, artifacts=seen.artifact_tuple, constraints=shown),
        summary_of(hidden),
    )


def _is_kept(ledger: Ledger, cause: Cause, hidden: Load, must_carry: tuple[str, ...]) -> bool:
    """Say whether the log holds all that is hidden: from before, or by this proposal's own withholding."""
    pending, stash = ledger.pending, ledger.stash
    if pending is not None and pending.cause == cause:
        return (
            equal(pending.facts, hidden.fact_tuple)
            and equal(pending.artifacts, hidden.artifact_tuple)
            and pending.must_carry == must_carry
        )
    return (
        equal(stash.facts, hidden.facts)
        and equal(stash.artifacts, hidden.artifacts)
        and set(stash.must_carry) == set(must_carry)
    )
