"""The fleet file: what is read from it, and what is said of mistakes."""

from pathlib import Path

import pytest

from mesh.fleet import FleetFileError, load_fleet, parse_fleet

GOOD = """
name = "desk"
entry = "front"
[agents.front]
module = "desk:front"
clearance = ["pii"]
to = ["back"]
[agents.back]
intents = ["refund"]
[clients.app]
nkey = "UABC"
[operators.ops]
[viewers.audit]
[human]
[policies.strict]
max_depth = 2
turn_timeout_s = 5
[log]
max_age_days = 10
"""


def test_a_fleet_is_read() -> None:
    file = parse_fleet(GOOD)
    fleet = file.fleet
    assert (fleet.entry, fleet.human, fleet.clients) == ("front", True, ("app",))
    assert fleet.agents["front"].to == ("back",)
    assert fleet.agents["back"].to is None
    assert fleet.log_max_age_s == 864_000
    assert file.given_keys == {"app": "UABC"}


def test_there_is_always_a_default_policy() -> None:
    rules = parse_fleet(GOOD).rules
    assert set(rules) == {"default", "strict"}
    assert (rules["strict"].max_depth, rules["strict"].name) == (2, "strict")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(('entry = "front"', 'entry = "nobody"'), "'nobody' is no agent", id="unknown-entry"),
        pytest.param(('to = ["back"]', 'to = ["bakc"]'), "agents.front.to: 'bakc'", id="unknown-target"),
        pytest.param(("max_depth = 2", "max_dept = 2"), "max_dept", id="unknown-policy-field"),
        pytest.param(("[human]", "[humans]"), "humans", id="unknown-section"),
        pytest.param(("max_age_days = 10", "max_age_days = 0"), "max_age_days", id="no-age"),
        pytest.param(('name = "desk"', "name ="), "mesh.toml", id="no-toml"),
    ],
)
def test_a_mistake_is_named(change: tuple[str, str], said: str) -> None:
    with pytest.raises(FleetFileError, match=said):
        parse_fleet(GOOD.replace(*change))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match=r"mesh\.toml"):
        load_fleet(tmp_path)
