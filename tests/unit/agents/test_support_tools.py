"""The support fleet's tools, each against a fresh database."""

from typing import Any

import pytest

from agents.support import tools
from agents.support.database import connected
from mesh.agent.errors import ToolArgumentsInvalid, ToolError

pytestmark = pytest.mark.usefixtures("records")


def test_a_customer_is_found_by_address_in_whatever_case_and_by_id() -> None:
    by_email = tools.find_customer(email="Ada.Brandt@Example.com")
    assert by_email == tools.find_customer(customer_id="c-1001")
    assert (by_email["name"], by_email["status"]) == ("Ada Brandt", "active")


@pytest.mark.parametrize(
    "wrong", [{}, {"email": "nobody@example.com"}, {"email": "kiri@example.net", "customer_id": "c-1011"}]
)
def test_a_customer_that_cannot_be_found_is_an_error_to_read(wrong: dict[str, str]) -> None:
    with pytest.raises(ToolError):
        tools.find_customer(**wrong)


async def test_an_id_of_another_shape_never_reaches_the_database() -> None:
    with pytest.raises(ToolArgumentsInvalid, match="customer_id"):
        await tools.list_charges.run({"customer_id": "c-1001' OR '1'='1"})


def test_the_newest_charges_come_first() -> None:
    days = [charge["day"] for charge in tools.list_charges("c-1014")]
    assert days == sorted(days, reverse=True)
    assert days[0] == "2026-11-15"


def test_of_a_pair_only_the_later_charge_is_a_duplicate() -> None:
    assert [charge["charge_id"] for charge in tools.find_duplicate_charges("c-1001")] == ["ch-9001"]
    assert tools.find_duplicate_charges("c-1002") == []


def test_a_charge_is_refunded_once_for_each_key_and_never_twice() -> None:
    first = tools.refund_charge("ch-9001", "charged twice", "key-1")
    assert first == {
        "charge_id": "ch-9001",
        "amount": "49.00 EUR",
        "what": "Fiber 500, month 2026-11",
        "refunded": True,
    }
    assert tools.refund_charge("ch-9001", "charged twice", "key-1") == first
    again = tools.refund_charge("ch-9001", "charged twice", "key-2")
    assert (again["refunded"], again["why"]) == (False, "already_refunded")
    with connected() as db:
        assert db.execute("SELECT count(*) FROM refunds WHERE charge_id = 'ch-9001'").fetchone()[0] == 1
    assert tools.find_duplicate_charges("c-1001") == []


@pytest.mark.parametrize(
    ("charge", "why"),
    [
        pytest.param("ch-9008", "already_refunded", id="refunded-before"),
        pytest.param("ch-2017-2611", "not_paid", id="never-paid"),
        pytest.param("ch-9010", "needs_approval", id="over-the-limit"),
    ],
)
def test_what_the_house_rules_forbid_is_a_result_that_says_so(charge: str, why: str) -> None:
    result = tools.refund_charge(charge, "asked for", "key")
    assert (result["refunded"], result["why"]) == (False, why)


def test_a_charge_that_does_not_exist_cannot_be_refunded() -> None:
    with pytest.raises(ToolError, match="ch-0000"):
        tools.refund_charge("ch-0000", "asked for", "key")


def test_a_charge_is_found_by_its_words() -> None:
    assert tools.find_charge("c-1016", "router")["charge_id"] == "ch-9016"
    assert tools.find_charge("c-1014", "Fiber")["day"] == "2026-11-03"
    with pytest.raises(ToolError):
        tools.find_charge("c-1014", "late fee")


def test_a_subscription_is_ended_once() -> None:
    (plan,) = tools.list_subscriptions("c-1009")
    ended = tools.cancel_subscription(plan["subscription_id"], "key-1")
    assert ended["cancelled"]
    assert tools.cancel_subscription(plan["subscription_id"], "key-1") == ended
    assert tools.cancel_subscription(plan["subscription_id"], "key-2")["why"] == "already_cancelled"
    assert tools.list_subscriptions("c-1009")[0]["status"] == "cancelled"


def test_subscriptions_are_found_by_words_of_their_name() -> None:
    assert [each["plan"] for each in tools.list_subscriptions("c-1011", "tv")] == ["TV Plus"]
    assert len(tools.list_subscriptions("c-1011")) == 2


@pytest.mark.parametrize(
    ("device", "verdict"),
    [
        ("d-4001", "healthy"),
        ("d-4002", "hung"),
        ("d-4004", "hardware"),
        ("d-4005", "outage"),
        ("d-4019", "cable"),
        ("d-4020", "packet_loss"),
        ("d-4106", "weak_signal"),
        ("d-4107", "overheating"),
    ],
)
def test_a_device_is_judged_by_its_readings_alone(device: str, verdict: str) -> None:
    assert tools.run_diagnostics(device)["verdict"] == verdict
    assert tools.run_diagnostics(device) == tools.run_diagnostics(device)


def test_a_reboot_helps_a_device_whose_settings_are_sound() -> None:
    assert tools.reboot_device("d-4002", "key")["verdict"] == "healthy"
    assert tools.run_diagnostics("d-4002")["uptime_hours"] == 0


def test_a_reset_helps_where_a_reboot_does_not() -> None:
    assert tools.reboot_device("d-4003", "key-1")["verdict"] == "hung"
    assert tools.reset_device("d-4003", "key-2")["verdict"] == "healthy"


def test_nothing_helps_a_broken_device() -> None:
    assert tools.reset_device("d-4004", "key")["verdict"] == "hardware"


def test_devices_are_listed_by_kind_and_without_their_owner() -> None:
    everything = tools.list_devices("c-1011")
    assert {device["kind"] for device in everything} == {"router", "set-top box"}
    assert len(tools.list_devices("c-1011", "router")) == 1
    assert all("customer_id" not in device for device in everything)


async def test_a_kind_may_be_written_large() -> None:
    assert len(await tools.list_devices.run({"customer_id": "c-1001", "kind": "Router"})) == 1


def test_the_state_of_a_town_is_known() -> None:
    assert tools.service_status(" Leiden ")["status"] == "outage"
    with pytest.raises(ToolError, match="Atlantis"):
        tools.service_status("Atlantis")


def test_a_question_finds_the_page_with_most_of_its_words() -> None:
    assert tools.search_help("When do you open, and what are the opening hours?")["topic"] == "opening hours"
    with pytest.raises(ToolError):
        tools.search_help("What is the meaning of life?")


def as_text(value: Any) -> str:
    return str(value)


def test_nothing_that_technical_can_call_says_who_a_customer_is() -> None:
    shown = as_text(
        [
            tools.list_devices("c-1001"),
            tools.run_diagnostics("d-4001"),
            tools.reboot_device("d-4001", "k1"),
            tools.reset_device("d-4001", "k2"),
        ]
    )
    assert "Brandt" not in shown
    assert "@" not in shown
