"""Effects as the journals have them: what a request did to the world, and what it may have done.

A journal is its agent's own record; what cannot be read in it is left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from mesh.agent.record import DONE, Record
from mesh.bus.connection import Bus
from mesh.client.journals import journals_in, stored_steps
from protocol.wire import codec
from protocol.wire.events import AnyEvent


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One effect, known by its key in whatever round it was tried."""

    agent: str
    turn: str
    step: str
    """Where its intent stands in the turn's journal."""
    action: str
    key: str
    at: int
    """Of the intent, UTC µs."""
    state: Literal["done", "not_proven"]
    """`not_proven`: there is an intent and no result. It may have happened."""
    result: Any = None
    """Of one that is done: what the tool returned, or its refusal."""


async def effects_of(bus: Bus, happened: Sequence[AnyEvent]) -> list[Effect]:
    """Return the effects in the journals of a request, given its events, in the order of their beginning."""
    found: dict[tuple[str, str, str], Effect] = {}
    agents = journals_in(happened).values()
    async for kept in stored_steps(bus, happened[0].request, agents):
        _, _, agent, _, turn, name = kept.subject.split(".")
        record = codec.readable(kept.data, Record)
        if record is None or record.kind not in ("intent", "effect"):
            continue  # the count of its attempts, another step, or nothing of ours
        step = name.removesuffix(DONE)
        effect = (agent, turn, record.key or step)
        before = found.get(effect)
        if before is None:
            before = Effect(
                agent=agent,
                turn=turn,
                step=step,
                action=record.name,
                key=record.key,
                at=record.at,
                state="not_proven",
            )
        found[effect] = before
        if record.kind == "effect":
            refused: Mapping[str, str] | None = (
                None if record.error is None else {"refused": record.error.code}
            )
            found[effect] = msgspec.structs.replace(before, state="done", result=refused or record.value)
    return list(found.values())
