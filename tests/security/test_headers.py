"""Attacks by headers that have power over what is stored: deduplication, rollups, schedules, traces."""

from collections.abc import Awaitable, Callable

import pytest

from mesh.bus.roles import GET, NEXT
from mesh.errors import PublishRefused
from protocol.wire.subjects import card, ctl, dead, evt, prop, step
from tests.security.attacks import Tried, stored
from tests.security.scenes import Scene, attempt, quiet
from tests.servers import eventually, fresh


async def test_a_guessed_message_id_makes_nobodys_message_vanish(kept_out: Tried) -> None:
    """Squatting in the deduplication window of a stream that many write: it ignores sender and payload."""

    async def attack(scene: Scene) -> bool:
        request = fresh()
        squat, victims = {"Nats-Msg-Id": str(request)}, dead("a")
        await attempt(await scene.bus("b"), dead("b"), b"junk", squat)
        scene.expected.add(("DEAD", victims))
        before = await stored(scene, "DEAD", victims)
        # What an agent that sent ids would do, against what ours does.
        await (await scene.bus("a")).publish_durable(victims, b"{}", None if scene.shipped else squat)
        return await stored(scene, "DEAD", victims) == before

    await kept_out(attack)


@pytest.mark.parametrize(
    ("headers", "what"),
    [
        pytest.param({"Nats-Rollup": "all"}, "gone", id="rollup-of-all"),
        pytest.param(
            {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "mesh.card.a"},
            "forged",
            id="a-schedule-that-speaks-for-another",
        ),
    ],
)
async def test_a_card_cannot_be_erased_or_forged_by_a_header(
    headers: dict[str, str], what: str, kept_out: Tried
) -> None:
    async def attack(scene: Scene) -> bool:
        scene.expected.add(("CARDS", card("a")))
        await (await scene.bus("a")).publish_durable(card("a"), b"the card of a")
        await attempt(await scene.bus("b"), card("b"), b"evil", headers)
        admin = await scene.admin()
        await quiet(admin)

        async def theirs() -> bytes:
            return (await admin.request(GET + "CARDS." + card("a"))).data

        if not scene.shipped:  # a schedule takes its time
            await eventually(lambda: _differs(theirs))
        return await theirs() != b"the card of a"

    await kept_out(attack)


async def _differs(ask: Callable[[], Awaitable[bytes]]) -> bool:
    return await ask() != b"the card of a"


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-TTL": "1s"},
        {"Nats-Incr": "1"},
        {"Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target": "mesh.card.a"},
        {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "mesh.dead.b"},
        {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    ],
    ids=lambda headers: "-".join(headers.values()),
)
async def test_no_stream_that_outsiders_write_takes_a_header_with_power(
    headers: dict[str, str], shipped: Scene, loose_streams: Scene
) -> None:
    request = fresh()
    agent, client, operator = [await shipped.bus(name) for name in ("b", "c2", "op")]
    writes = [
        (agent, prop("b", request)),
        (agent, step("b", request, "t", "0-1")),
        (agent, card("b")),
        (agent, dead("b")),
        (client, prop("c2", request)),
        (client, ctl("c2", request)),
        (operator, ctl("op", request)),
    ]
    for bus, subject in writes:
        with pytest.raises(PublishRefused):
            await bus.publish_durable(subject, b"x", headers)
        await bus.publish_durable(subject, b"x")  # it is the header that is refused
    if "Nats-Rollup" in headers or "Nats-TTL" in headers:  # and a stream that allows it takes it
        await (await loose_streams.bus("b")).publish_durable(card("b"), b"x", headers)


async def test_a_trace_header_writes_nothing_into_the_log(refused: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        request = fresh()
        bus = await scene.bus("b")
        target = evt("a", request)
        for more in ({}, {"Nats-Trace-Only": "true"}):
            for subject in (prop("b", request), card("b"), NEXT + "LOG.in-b"):
                await attempt(bus, subject, b"", {"Nats-Trace-Dest": target, **more})
        await quiet(await scene.admin())
        return bool(await stored(scene, "LOG", target))

    await refused(attack)
