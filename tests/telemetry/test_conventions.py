"""Names follow the conventions: the registry of the semantic-conventions package that is pinned."""

from importlib import import_module
from typing import Any, Final

import pytest

from mesh.model.loop import drive
from mesh.model.vendor import ModelRefused
from mesh.model.vendors.claude import ClaudeModel
from mesh.telemetry import export, tracing
from mesh.testing.harness import turn
from tests.deploy.test_metrics import labels_on_the_page
from tests.telemetry.seen import Readings, Seen, said
from tests.telemetry.test_models import MODEL, Parrot
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import fails, says

ROOMS = ("gen_ai", "messaging", "server", "error")
PROPOSED = {tracing.TRANSFER_MODE, tracing.TRANSFER_TARGET}
"""Of a pull request to the conventions: the registry does not have them yet."""
OF_A_CALL = {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"}
"""Required of each model call, and of its histograms."""
OF_A_MESSAGE = {"messaging.system", "messaging.operation.name", "messaging.operation.type"}


def constants(module: str) -> set[str]:
    values = vars(import_module(f"opentelemetry.semconv._incubating.{module}")).values()
    return {value for value in values if isinstance(value, str)}


REGISTRY = set().union(*(constants(f"attributes.{room}_attributes") for room in ROOMS))
METRICS = constants("metrics.gen_ai_metrics")


def test_every_name_that_is_not_ours_is_in_the_registry() -> None:
    final = (key for key, kind in vars(tracing)["__annotations__"].items() if kind is Final)
    names = {getattr(tracing, key) for key in final}
    foreign = {name for name in names if name.partition(".")[0] in ROOMS and "." in name}
    assert foreign >= OF_A_CALL | OF_A_MESSAGE
    assert foreign - REGISTRY == PROPOSED


def test_histograms_of_model_calls_are_in_the_registry() -> None:
    made: list[Any] = [export.model_duration, export.model_tokens]
    assert {each._name for each in made} <= METRICS
    for each in made:
        assert labels_on_the_page()[each._name].keys() | OF_A_CALL >= OF_A_CALL


def test_a_message_has_what_is_required_of_it() -> None:
    sent = tracing.messaging(tracing.SEND, "mesh.prop.{sender}.{request}", sender="app", request="r")
    assert sent.keys() >= OF_A_MESSAGE
    assert sent["messaging.destination.name"] == "mesh.prop.app.r"
    fired = tracing.messaging(tracing.PROCESS, "mesh.timer.fire.{partition}.{request}")
    assert "messaging.destination.name" not in fired


async def test_a_model_call_has_what_is_required_of_it_in_its_span_and_histograms(
    seen: Seen, readings: Readings
) -> None:
    await drive(turn(facts={"text": "hello"}), Parrot(), instructions="", tools=())
    (call,) = seen.all
    assert said(call).keys() >= OF_A_CALL
    for name in (export.model_duration, export.model_tokens):
        points = readings.points(name._name)  # type: ignore[attr-defined]
        assert points
        assert all(labels.keys() >= OF_A_CALL for labels, _ in points)
    kinds = {labels["gen_ai.token.type"] for labels, _ in readings.points("gen_ai.client.token.usage")}
    assert kinds == {"input", "output"}


async def test_a_vendors_call_names_vendor_and_host_and_a_failed_one_its_error(
    seen: Seen, readings: Readings
) -> None:
    async with StubClaude([says("hello"), fails(400)]) as stub:
        model = ClaudeModel(MODEL, base_url=stub.url, api_key="stub")
        await drive(turn(facts={"text": "hello"}), model, instructions="", tools=())
        with pytest.raises(ModelRefused, match="status 400"):
            await drive(turn(facts={"text": "hello"}), model, instructions="", tools=())
        await model.close()
    points = [labels for labels, _ in readings.points("gen_ai.client.operation.duration")]
    assert {labels["gen_ai.provider.name"] for labels in points} == {"anthropic"}
    assert {labels["server.address"] for labels in points} == {"127.0.0.1"}
    assert {labels.get("error.type") for labels in points} == {None, "model.refused"}
