"""The checks read what the runtime writes: journals made by the real one, in memory."""

from collections.abc import Awaitable, Callable
from typing import Any

from mesh.agent._effects import run_effect
from mesh.agent._journal import Journal
from mesh.agent._steps import RoundKey
from mesh.testing import MemorySteps
from tests.drill.check import BY_NAME
from tests.drill.evidence import Evidence, StepName
from tests.drill.reading import Reading


def journal(store: MemorySteps, round_: int, nonce: str) -> Journal:
    return Journal(store, RoundKey("a", "r", "t", round_), nonce=nonce, version="1")


def giving(value: Any) -> Callable[[], Awaitable[Any]]:
    async def give() -> Any:
        return value

    return give


def reading_of(store: MemorySteps) -> Reading:
    steps = {StepName("a", *where): body for where, body in store.steps.items()}
    return Reading(Evidence(submitted=(), bodies={}, steps=steps, deeds=(), faults=()))


async def test_a_journal_of_two_rounds_is_read_with_its_effects_and_fences() -> None:
    store = MemorySteps()
    first = journal(store, 0, "n1")
    await first.step(("model", "m", "d"), giving(1))
    await run_effect(first, ("effect", "pay", "d"), "key", giving(2), again=None)
    await journal(store, 1, "n2").step(("call", "look", "d"), giving(3))
    await store.put("r", "t", "0-a0", b"{}")
    reading = reading_of(store)
    assert [(placed.where.step, placed.step.kind) for placed in reading.steps] == [
        ("0-0", "model"),
        ("0-1", "intent"),
        ("0-1d", "effect"),
        ("0-2", "fence"),
        ("1-0", "call"),
    ]
    assert [placed.where.step for placed in reading.intents["key"]] == ["0-1"]
    assert list(BY_NAME["fenced"].find(reading)) == []
    assert list(BY_NAME["readable_journals"].find(reading)) == []


async def test_a_round_that_was_not_fenced_is_seen() -> None:
    store = MemorySteps()
    await journal(store, 0, "n1").step(("model", "m", "d"), giving(1))
    await journal(store, 1, "n2").step(("call", "look", "d"), giving(3))
    fences = [where for where, body in store.steps.items() if b'"fence"' in body]
    for where in fences:
        del store.steps[where]
    assert [breach.promise for breach in BY_NAME["fenced"].find(reading_of(store))] == ["fenced"]
