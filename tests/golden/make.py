"""Makes golden files for what has none yet, from the contract's scenarios. What is there is never touched.

Run by hand, once: `python -m tests.golden.make [SCENARIO ...]` adds a file for each event type that has none,
and the log of each scenario of `tests/contract/scenarios.py` that is named.
"""

import json
import sys
from pathlib import Path

from mesh.testing import InMemoryGuard
from protocol.wire import codec
from protocol.wire.events import AnyEvent, type_of
from tests.contract.scenarios import FLEET, POLICIES, SCENARIOS, Scenario
from tests.contract.script import Script
from tests.contract.swarm_scenarios import POLICIES as OF_SWARMS
from tests.contract.swarm_scenarios import SWARMS
from tests.contract.tree_scenarios import POLICIES as OF_TREES
from tests.contract.tree_scenarios import TREES

ALL = (*SCENARIOS, *TREES, *SWARMS)
HERE = Path(__file__).parent
EVENTS = HERE / "events" / "v2"
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


def fullest() -> dict[str, AnyEvent]:
    """Return of each event type the one that says most."""
    found: dict[str, AnyEvent] = {}
    for event in (event for scenario in ALL for event in played(scenario).events):
        known = found.get(type_of(event))
        if known is None or len(json.loads(codec.encode(event))) > len(json.loads(codec.encode(known))):
            found[type_of(event)] = event
    return found


def add_missing(*names: str) -> list[Path]:
    """Write each event type and each named log that there is no file of; return what is new."""
    made = {
        EVENTS / f"{type_}.json": json.dumps(json.loads(codec.encode(event)), indent=2, ensure_ascii=False)
        for type_, event in fullest().items()
    }
    for scenario in ALL:
        if scenario.play.__name__ in names:
            log = b"\n".join(played(scenario).bodies).decode()
            made[LOGS / f"{scenario.play.__name__.replace('_', '-')}.jsonl"] = log
    new = [path for path in made if not path.exists()]
    for path in new:
        path.write_text(made[path] + "\n")
    return new


if __name__ == "__main__":
    for path in add_missing(*sys.argv[1:]):
        print(path.relative_to(HERE))  # noqa: T201 - run by hand
