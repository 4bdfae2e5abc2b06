"""Offers: continuous pulling from inboxes of intents: those that an agent lists, in a mesh with swarms.

All agents that list an intent share its inbox, and each offer in it is delivered to one of them at a time.
Who has it claims it, or gives it back (`Message.nak`) for another. It is held until it is known what came of
the claim: a claim that is refused leaves the offer to the others. A consumer that is new begins with the
oldest offer that the log has; one whose `claim_by` has passed is only acknowledged.
"""

import asyncio
from collections.abc import Callable, Iterable

from mesh.bus.connection import Bus
from mesh.bus.consumer import Handler, Puller
from mesh.bus.streams import LOG, inbox_consumer
from protocol.wire.subjects import intent_inbox


class OfferPullers:
    """Pulls from the inbox of each intent that `follow` names, until `drain` or `close`.

    Args:
        on_offer: takes each offer, as `Puller` has it.
        slots: limit of offers of one intent requested or in hand.
        expires_s: returns how long a pull lasts; less than the consumers' ack wait.
    """

    def __init__(self, bus: Bus, on_offer: Handler, *, slots: int, expires_s: Callable[[], float]) -> None:
        self._bus = bus
        self._on_offer = on_offer
        self._slots = slots
        self._expires_s = expires_s
        self._pullers: dict[str, Puller] = {}
        """By the inbox's name."""
        self._left: list[Puller] = []
        """Those that pull no more, and may have offers in hand."""
        self._changing = asyncio.Lock()
        self._stopped = False

    async def follow(self, intents: Iterable[str]) -> None:
        """Begin to pull offers of the intents that are new here, and end pulling of all that are not named.

        What is in hand goes on. Idempotent. A bus that is away is waited for.
        """
        wanted = dict.fromkeys(map(intent_inbox, intents))
        async with self._changing:
            for name in [name for name in self._pullers if name not in wanted]:
                puller = self._pullers.pop(name)
                self._left.append(puller)
                await puller.stop()
            for name in wanted:
                if name not in self._pullers and not self._stopped:
                    self._pullers[name] = puller = self._puller(inbox_consumer(name))
                    await self._bus.retry_unavailable(puller.start)

    def _puller(self, consumer: str) -> Puller:
        return Puller(
            self._bus, LOG, consumer, self._on_offer, slots=self._slots, expires_s=self._expires_s()
        )

    async def drain(self) -> None:
        """End all pulls at once, and wait for running handlers. Call `close` afterwards."""
        self._stopped = True
        await asyncio.gather(*(puller.drain() for puller in self._all))

    async def close(self) -> None:
        """End all pulls, and cancel running handlers. Idempotent."""
        self._stopped = True
        await asyncio.gather(*(puller.close() for puller in self._all))

    @property
    def _all(self) -> list[Puller]:
        return [*self._pullers.values(), *self._left]
