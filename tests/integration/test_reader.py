"""Reading what a stream keeps, by direct gets."""

import pytest

from mesh.bus.reader import StoredMessage, batch, every, first_since, get, get_seq, microseconds
from mesh.bus.roles import GET
from mesh.errors import ApiError
from mesh.testing import LocalBus
from protocol.wire.subjects import card, step
from tests.integration.filled_log import fill
from tests.servers import ConnectAs, fresh


async def test_a_senders_headers_do_not_pass_for_the_servers(connect_as: ConnectAs) -> None:
    """Anybody may write into their journal, with any headers; a reader believes the server's alone."""
    agent, viewer, request = await connect_as("a"), await connect_as("audit"), fresh()
    subject = step("a", request, "t", "0-0")
    lies = {
        "Nats-Stream": "STEPS-a",
        "Nats-Subject": step("b", request, "t", "0-0"),
        "Nats-Sequence": "1",
        "Nats-Time-Stamp": "2001-01-01T00:00:00Z",
    }
    seq = (await agent.publish_durable(subject, b"mine", lies)).seq
    one, same = await get(viewer, "STEPS-a", subject), await get_seq(viewer, "STEPS-a", seq)
    assert one is not None
    assert one == same
    assert (one.seq, one.subject, one.data) == (seq, subject, b"mine")
    assert one.at > 1_700_000_000_000_000
    assert await batch(viewer, "STEPS-a", subject, 1) == [one]
    assert [kept async for kept in every(viewer, "STEPS-a", subject)] == [one]


async def test_what_is_not_there_is_none(connect_as: ConnectAs) -> None:
    viewer = await connect_as("audit")
    assert await get(viewer, "CARDS", card("nobody")) is None
    assert await get_seq(viewer, "LOG", 1 << 40) is None
    assert await batch(viewer, "LOG", None, 1 << 40) == []


async def test_a_refusal_is_an_error_and_not_an_empty_answer(connect_as: ConnectAs) -> None:
    viewer = await connect_as("audit")
    with pytest.raises(ApiError) as refused:
        await get_seq(viewer, "LOG", 0)
    assert refused.value.err_code == 408
    with pytest.raises(ApiError):
        await viewer.collect(GET + "LOG", b"no request for a batch")


async def test_the_first_since_a_time(own_server: LocalBus) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        assert await first_since(viewer, "LOG", "mesh.evt.>", "2000-01-01T00:00:00Z") is None
        await fill(admin, 3)
        stored: list[StoredMessage] = await batch(viewer, "LOG", None, 1)
        for since, wanted in (("2000-01-01T00:00:00Z", stored[0]), (stored[1].stamp, stored[1])):
            assert await first_since(viewer, "LOG", "mesh.evt.>", since) == wanted
        assert await first_since(viewer, "LOG", "mesh.evt.>", "2099-01-01T00:00:00Z") is None


@pytest.mark.parametrize(
    ("stamp", "wanted"),
    [
        ("2026-11-21T22:00:00Z", 0),
        ("2026-11-21T22:00:00.5Z", 500_000),
        ("2026-11-21T22:00:00.000001Z", 1),
        ("2026-11-21T22:00:00.123456789Z", 123_456),
    ],
)
def test_a_stamp_has_any_number_of_decimals(stamp: str, wanted: int) -> None:
    assert microseconds(stamp) - microseconds("2026-11-21T22:00:00Z") == wanted
