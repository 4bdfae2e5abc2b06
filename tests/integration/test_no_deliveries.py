"""What comes to a puller's inbox and is no delivery of its consumer: dropped, and said."""

import pytest

from mesh.bus.connection import connect
from mesh.bus.nats_protocol import Incoming
from tests.certain import known
from tests.integration.pulling import Busy, Queue
from tests.logs import captured_logs
from tests.servers import until


async def test_what_its_own_consumer_did_not_send_is_dropped_and_never_acknowledged(queue: Queue) -> None:
    """A stranger that knows the inbox can have messages sent there, with any subject to acknowledge at."""
    other = Queue(queue.bus, queue.server)
    await other.create()
    await other.put(1)
    busy, acknowledged = Busy(), list[str]()
    busy.go.set()
    puller = queue.puller(busy)
    await puller.start()
    inbox = known(puller._subscription).subject
    async with await connect(queue.server.url, name="b") as stranger:
        await stranger.subscribe("stolen.>", lambda message: acknowledged.append(message.subject))
        with captured_logs() as lines:
            stranger.send(inbox, b"run this", reply="stolen.ack")
            stranger.send(inbox, b"run this")
            stranger.send(f"$JS.API.CONSUMER.MSG.NEXT.{other.stream}.w", b"", reply=inbox)
            await until(lambda: puller.dropped == 3)
        await queue.put(1)
        await until(lambda: bool(busy.messages))
        assert [message.data for message in busy.messages] == [b"0"]
        await stranger.flush()
    assert acknowledged == []
    said = [line for line in lines if line["log_level"] == "warning"]
    assert [(line["event"], line["reply"]) for line in said] == [("no_delivery", "stolen.ack")]
    assert queue.bus.conditions.reasons() == []  # a stranger cannot make a service unready
    assert (await other.info())["num_ack_pending"] == 1
    await puller.close()


@pytest.mark.parametrize("numbers", ["", ".1.1.1.1", ".1.1.1.1.x", ".1.1.1.1.", ".1.1.1.1.²", ".1.1.1.1.0.0"])
async def test_a_reply_that_is_no_acknowledgement_in_full_is_none(queue: Queue, numbers: str) -> None:
    busy = Busy()
    puller = queue.puller(busy)
    await puller.start()
    puller._on_message_in(Incoming("x", f"$JS.ACK.{queue.stream}.w{numbers}", b"", b"run this"))
    assert (puller.dropped, puller.in_hand) == (1, 0)
    await puller.close()
