"""Schedules in the fleet file: what is read from them, and what is said of mistakes."""

import pytest

from mesh.fleet.file import FleetFileError, parse_fleet
from protocol.wire.commands import Submit
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName, is_request_id, submitted_ms, submitter_of
from protocol.wire.schedule import Schedule, tick_request

FLEET = """
name = "desk"
entry = "front"
[agents.front]
[agents.back]
[clients.app]
[operators.ops]
[viewers.audit]
[policies.strict]
"""
NIGHTLY = {"client": '"app"', "cron": '"30 2 * * *"', "text": '"the report"'}


def fleet(name: str = "nightly", **keys: str) -> str:
    lines = [f"{key} = {value}" for key, value in {**NIGHTLY, **keys}.items()]
    return "\n".join((FLEET, f"[schedules.{name}]", *lines))


def test_a_schedule_is_read() -> None:
    wanted = {"zone": '"Europe/Berlin"', "overlap": '"allow"', "catch_up_s": "60", "client": '"ops"'}
    what = {"to": '"back"', "policy": '"strict"', "facts": '{ region = "north", days = [1, 2] }'}
    assert parse_fleet(fleet(**wanted, **what)).planned == {
        "nightly": Schedule(
            client=AgentName("ops"),
            cron="30 2 * * *",
            zone="Europe/Berlin",
            overlap="allow",
            catch_up_s=60.0,
            submit=Submit(
                text="the report",
                to=AgentName("back"),
                facts=(Fact(key="region", value="north"), Fact(key="days", value=[1, 2])),
                policy="strict",
            ),
        )
    }
    plain = parse_fleet(fleet()).planned["nightly"]
    assert (plain.zone, plain.overlap, plain.catch_up_s, plain.submit.to) == ("UTC", "skip", 3600.0, None)
    assert parse_fleet(FLEET).planned == {}


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        ({"client": '"audit"'}, "client: 'audit' is no client"),
        ({"client": '"front"'}, "client: 'front' is no client"),
        ({"to": '"nobody"'}, "to: 'nobody' is no agent"),
        ({"to": '"human"'}, "to: 'human' is no agent"),
        ({"policy": '"lax"'}, "policy: there is no policy 'lax'"),
        ({"cron": '"61 * * * *"'}, "cron: minute '61'"),
        ({"zone": '"Mars/Olympus"'}, "zone: this machine knows no time zone"),
        ({"text": '" "'}, "`text` is empty"),
        ({"facts": '{ text = "x" }'}, "text"),
        ({"catch_up_s": "1"}, "catch_up_s"),
        ({"overlap": '"queue"'}, "overlap"),
        ({"crom": '"@daily"'}, "did you mean `cron`?"),
        ({"name": '"Night_ly"'}, "the name of a schedule is"),
    ],
)
def test_a_mistake_is_refused_with_its_place(keys: dict[str, str], mistake: str) -> None:
    name = keys.pop("name", '"nightly"').strip('"')
    with pytest.raises(FleetFileError) as refused:
        parse_fleet(fleet(name, **keys))
    assert f"schedules.{name}" in str(refused.value)
    assert mistake in str(refused.value)


def test_a_tick_has_one_request_and_no_other_tick_or_schedule_has_it() -> None:
    schedule, at = parse_fleet(fleet()).planned["nightly"], 1_795_746_600_000_000
    request = tick_request(schedule, "nightly", at)
    assert is_request_id(request)
    assert (submitter_of(request), submitted_ms(request)) == ("app", at // 1000)
    others = {tick_request(schedule, "nightly", at + 1), tick_request(schedule, "weekly", at)}
    assert tick_request(schedule, "nightly", at) == request not in others
    assert len(others) == 2
