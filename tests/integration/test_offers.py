"""Offers: each goes to one of the agents that list its intent, and pulling follows what an agent lists."""

import asyncio

from mesh.agent._claims import OfferPullers
from mesh.bus.connection import Bus
from mesh.bus.consumer import Handler, Message, spread
from mesh.bus.event_log import JetStreamLog
from mesh.bus.provision import provision
from mesh.testing import EmbeddedBus
from protocol.wire.subjects import evt, intent_inbox
from tests.integration.test_provisioning import taking
from tests.servers import ConnectAs, fresh, until

REVIEW, READ_ON = map(intent_inbox, ("review", "read on"))


class Taker:
    """An agent that takes offers, and acknowledges each once `hold` is set; some of them it gives back."""

    def __init__(self, bus: Bus, name: str, gives_back: tuple[str, ...] = ()) -> None:
        self.name = name
        self.taken: list[str] = []
        self.gives_back = gives_back
        self.hold = asyncio.Event()
        self.hold.set()
        self.pullers = OfferPullers(bus, self._take, slots=1, expires_s=lambda: 4.0)

    async def _take(self, message: Message) -> None:
        self.taken.append(message.subject)
        if message.subject in self.gives_back:
            message.nak(0.05)
            return
        await self.hold.wait()
        await message.ack_sync()


async def offered(guard: Bus, inbox: str, count: int = 1) -> list[str]:
    requests = [fresh() for _ in range(count)]
    for request in requests:
        await JetStreamLog(guard).append(inbox, request, b'{"n":0}', after=0)
    return [evt(inbox, request) for request in requests]


async def test_an_offer_goes_to_one_of_the_agents_that_list_its_intent(connect_as: ConnectAs) -> None:
    d, e = [Taker(await connect_as(name), name) for name in "de"]
    for taker in (d, e):
        taker.hold.clear()
        await taker.pullers.follow(["review"])
    subjects = await offered(await connect_as("guard"), REVIEW, 2)
    await until(lambda: len(d.taken) == len(e.taken) == 1)  # each has one slot, and the first is held
    subjects += await offered(await connect_as("guard"), REVIEW, 4)
    for taker in (d, e):
        taker.hold.set()
    await until(lambda: len(d.taken + e.taken) >= len(subjects))
    for taker in (d, e):
        await taker.pullers.drain()
    assert sorted(d.taken + e.taken) == sorted(subjects)


async def test_an_offer_that_one_gives_back_comes_to_another(connect_as: ConnectAs) -> None:
    d, e = [Taker(await connect_as(name), name) for name in "de"]
    await d.pullers.follow(["review"])
    request = fresh()
    d.gives_back = (evt(REVIEW, request),)
    await JetStreamLog(await connect_as("guard")).append(REVIEW, request, b'{"n":0}', after=0)
    await until(lambda: bool(d.taken))
    await e.pullers.follow(["review"])
    await until(lambda: bool(e.taken))
    for taker in (d, e):
        await taker.pullers.drain()
    assert set(d.taken) == set(e.taken) == {evt(REVIEW, request)}


async def test_two_offers_that_are_given_back_in_step_come_to_others_in_the_end(
    connect_as: ConnectAs,
) -> None:
    """Each may have the offer that the other one gets: served in turn, both would get theirs for ever."""
    first: dict[str, str] = {}
    settled: set[str] = set()

    def taker(name: str) -> Handler:
        async def take(message: Message) -> None:
            if first.setdefault(message.subject, name) != name:
                await message.ack_sync()
                settled.add(message.subject)
                return
            if message.subject == min(first):  # its verdict takes a moment longer than the other's
                await asyncio.sleep(0.02)
            message.nak(spread(0.2))

        return take

    pullers = [
        OfferPullers(await connect_as(name), taker(name), slots=1, expires_s=lambda: 4.0) for name in "de"
    ]
    for each in pullers:
        await each.follow(["review"])
    subjects = await offered(await connect_as("guard"), REVIEW, 2)
    await until(lambda: settled == set(subjects))
    for each in pullers:
        await each.drain()


async def test_pulling_follows_what_an_agent_lists_and_what_is_in_hand_goes_on(
    own_server: EmbeddedBus,
) -> None:
    async with (
        own_server.connected_as("admin") as admin,
        own_server.connected_as("guard") as guard,
        own_server.connected_as("d") as bus,
    ):
        d = Taker(bus, "d")
        await d.pullers.follow(["review"])
        d.hold.clear()
        (held,) = await offered(guard, REVIEW)
        await until(lambda: d.taken == [held])
        await provision(admin, taking(d=("read on",)))  # takes away the consumer of `review`
        await d.pullers.follow(["read on"])
        (other,) = await offered(guard, READ_ON)
        await until(lambda: d.taken == [held, other])
        await provision(admin, taking(d=("review", "read on")))
        await d.pullers.follow(["review", "read on"])
        await until(lambda: d.taken.count(held) == 2)  # the consumer is new: it begins from the first event
        assert not bus.conditions.reasons()
        d.hold.set()
        await d.pullers.drain()
        await d.pullers.close()
        await d.pullers.follow(["review"])
        assert not [each for each in d.pullers._all if each.running]
