"""Makes the golden files of the current form, from the stories and the contract's scenarios.

Run by hand: `python -m tests.golden.make` writes every log and every event anew, and prints what changed.
What `forms/` keeps is only ever added to.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mesh.testing import InMemoryGuard
from protocol.wire import codec
from protocol.wire.event import VERSION
from protocol.wire.events import type_of
from tests.contract.scenarios import FLEET, POLICIES, SCENARIOS, Scenario
from tests.contract.script import Script
from tests.contract.swarm_scenarios import POLICIES as OF_SWARMS
from tests.contract.swarm_scenarios import SWARMS
from tests.contract.tree_scenarios import POLICIES as OF_TREES
from tests.contract.tree_scenarios import TREES
from tests.golden.stories import STORIES, long_story

ALL = (*SCENARIOS, *TREES, *SWARMS)
KEPT = ("outlined", "supervised", "swarm")
"""Scenarios whose logs are golden, beside the stories."""
HERE = Path(__file__).parent
EVENTS = HERE / "events" / f"v{VERSION}"
BAD = HERE / "events" / "bad"
LOGS = HERE / "logs"
FORMS = HERE / "forms"


def played(scenario: Scenario) -> InMemoryGuard:
    guard = InMemoryGuard(
        FLEET,
        {**POLICIES, **OF_TREES, **OF_SWARMS},
        breakers=scenario.breakers,
        served=lambda agent: scenario.served,
    )
    scenario.play(Script(guard))
    return guard


def logs() -> dict[str, list[bytes]]:
    """Return every golden log by its file's name."""
    found = {story.__name__: story() for story in STORIES}
    found |= {each.play.__name__: played(each).bodies for each in ALL if each.play.__name__ in KEPT}
    return {f"{name.replace('_', '-')}.jsonl": bodies for name, bodies in found.items()}


def fullest(bodies: Iterator[bytes]) -> dict[str, bytes]:
    """Return of each event type the event that says most: that has most different fields, at any depth."""
    found: dict[str, bytes] = {}
    for body in bodies:
        type_ = type_of(codec.decode_event(body))
        if type_ not in found or _says(body) > _says(found[type_]):
            found[type_] = body
    return found


def _says(body: bytes) -> int:
    return len(set(_paths(json.loads(body))))


def _paths(node: Any, path: str = "") -> Iterator[str]:
    yield path
    for key, value in node.items() if isinstance(node, dict) else ():
        yield from _paths(value, f"{path}.{key}")
    for value in node if isinstance(node, list) else ():
        yield from _paths(value, f"{path}[]")


def golden() -> dict[Path, bytes]:
    """Return every file as it is to be, but for `forms/`."""
    told = logs()
    everything = [*told.values(), *(played(each).bodies for each in ALL)]
    small = (body for bodies in everything for body in bodies if len(body) < 10_000)
    pretty = {
        type_: json.dumps(json.loads(body), indent=2, ensure_ascii=False).encode() + b"\n"
        for type_, body in fullest(small).items()
    }
    return {EVENTS / f"{type_}.json": text for type_, text in pretty.items()} | {
        LOGS / name: b"\n".join(bodies) + b"\n" for name, bodies in told.items()
    }


def make() -> list[Path]:
    """Write what is not as it is to be; return it."""
    made = golden()
    form = FORMS / f"v{VERSION}.jsonl"
    if not form.exists():
        made[form] = b"\n".join(long_story()) + b"\n"
    changed = [path for path, text in made.items() if not path.exists() or path.read_bytes() != text]
    for path in changed:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(made[path])
    return changed


if __name__ == "__main__":
    for path in make():
        print(path.relative_to(HERE))  # noqa: T201 - run by hand
