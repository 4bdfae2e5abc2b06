"""Claims: an agent asks for an offered task, and holds the offer until it knows who got the task.

An offer lies in the inbox of its intent, and one of the agents that list the intent gets it. The agent claims
it by a proposal, stored before anything else. The guard answers the claim by a notice, and sends the task
itself as `task.opened` into the winner's own inbox. Notices can be lost. So a claim without an answer is
stored again; the guard recognises it and repeats its answer.

An offer that this agent may not have goes back, for another agent. One that is taken or over is acknowledged.
An offer that no agent claimed comes once more, to each agent alone, in the agent's own inbox. There it
occupies a slot for a second at most, then comes again later. It never goes to another agent.
While the request is frozen, the claim waits for its verdict, and its claimant holds the offer. If the claim
is refused after the thaw, the offer goes back. Only the guard knows how long the clock of a claim was
stopped. So an offer ends at its deadline, or when the guard reports its end.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable

from mesh.bus.connection import Bus
from mesh.bus.consumer import Handler, Message, Puller, spread
from mesh.bus.streams import LOG, inbox_consumer
from mesh.errors import Malformed
from mesh.service.failpoints import failpoint
from mesh.service.logs import get_logger
from protocol.wire import codec, subjects
from protocol.wire.commands import OfferClaimed, Proposal
from protocol.wire.events import TaskOffered
from protocol.wire.records import Notice
from protocol.wire.subjects import intent_inbox

_log = get_logger(__name__)

AGAIN_S = 1.0
"""Pause before an offer that was given back comes again, and before an unanswered claim is first stored
again."""
SILENT_MOST_S = 30.0
"""The longest pause before an offer to this agent alone comes again when no guard has answered its claim."""
BUSY = "busy"
"""The guard's answer while the agent has another task of the same lead: it may claim again."""
FROZEN = "move.deferred"
"""The guard's answer while the request is frozen: the claim is decided at the thaw."""
REFUSED = frozenset({"move.refused", "decided"})
"""Answers that leave the offer to other agents. After any other answer the offer is no longer needed."""

Store = Callable[[str, Proposal], Awaitable[None]]


class Claims:
    """The claims of one instance of an agent.

    Args:
        store: stores a proposal for a request.
        is_busy: returns True while this instance can take no more work.
        heartbeat_s: returns the interval at which the lease of an offer in hand is extended.
    """

    def __init__(self, store: Store, is_busy: Callable[[], bool], heartbeat_s: Callable[[], float]) -> None:
        self._store, self._is_busy, self._heartbeat_s = store, is_busy, heartbeat_s
        self._answers: dict[str, asyncio.Future[str]] = {}
        """The guard's answer to our claim, by offer."""
        self._digests: dict[str, str] = {}
        """Offer by digest of the claim: a rejection names nothing but the digest."""
        self._refused: dict[str, int] = {}
        """Offers that this agent may not have, with when they end (UTC µs)."""

    async def on_offer(self, message: Message) -> None:
        """Claim an offer, and hold it until the guard reports who has it. Raises Malformed."""
        event = codec.decode_event(message.data)
        place = subjects.parse_evt(message.subject)
        if not isinstance(event, TaskOffered) or place != (event.to, event.request):
            raise Malformed("what lies in the inbox of an intent is no offer")
        offer, now = event.offer.turn, time.time_ns() // 1000
        is_ours_alone = event.to != intent_inbox(event.intent)
        self._refused = {each: until for each, until in self._refused.items() if until > now}
        if now >= _ends_at(event) or (is_ours_alone and offer in self._refused):
            message.ack()
        elif offer in self._refused or offer in self._answers or self._is_busy():
            message.nak(spread(AGAIN_S))
        else:
            await self._claim(message, event, alone=is_ours_alone)

    async def _claim(self, message: Message, event: TaskOffered, *, alone: bool) -> None:
        offer, ends_at = event.offer.turn, _ends_at(event)
        left_s = AGAIN_S if alone else ends_at / 1e6 - time.time()
        claim = OfferClaimed(turn=offer, round=0)
        digest = codec.body_digest(codec.encode(claim))
        self._digests[digest] = offer
        heart = asyncio.create_task(self._hold(message))
        try:
            async with asyncio.timeout(left_s):
                answer = await self._ask_guard(event.request, claim)
                while answer == FROZEN and not alone:
                    await asyncio.sleep(AGAIN_S)
                    answer = await self._ask_guard(event.request, claim)
        except TimeoutError:
            answer = "" if alone else "unclaimed"
        except asyncio.CancelledError:
            message.nak()  # draining: another instance, or another agent, takes it
            raise
        finally:
            heart.cancel()
            del self._digests[digest]
        if answer in REFUSED:
            self._refused[offer] = ends_at
        if answer == BUSY:
            message.nak(spread(AGAIN_S))
        elif not answer:
            message.nak(spread(min(AGAIN_S * message.delivered, SILENT_MOST_S)))
        elif answer in REFUSED and not alone:
            message.nak()
        else:
            message.ack()
        _log.info("offer_settled", request=event.request, task=event.name, offer=offer, word=answer)

    async def _ask_guard(self, request: str, claim: OfferClaimed) -> str:
        """Store a claim until the guard answers it, waiting longer each time; return the answer."""
        word: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._answers[claim.turn] = word
        try:
            for again_s in itertools.accumulate(itertools.repeat(AGAIN_S), lambda waited, _: 2 * waited):
                await self._store(request, claim)
                failpoint("offer.claimed")
                await asyncio.wait({word}, timeout=again_s)
                if word.done():
                    return word.result()
        finally:
            del self._answers[claim.turn]
        raise AssertionError("the waits are endless")

    async def _hold(self, message: Message) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s())
            message.in_progress()

    def on_notice(self, notice: Notice) -> None:
        """Take a guard's answer about an offer in hand. It is only a hint, which others can forge: no agent
        gets a task by it."""
        if notice.ended is not None:
            self._set_answer(notice.ended.turn, notice.ended.why)
        elif notice.error is not None:
            self._set_answer(self._digests.get(notice.digest, ""), "move.refused")

    def _set_answer(self, offer: str, why: str) -> None:
        word = self._answers.get(offer)
        if word is not None and not word.done():
            word.set_result(why)


def _ends_at(event: TaskOffered) -> int:
    """Return the time (UTC µs) after which no agent can get an offer, however long its request is frozen."""
    return max(event.claim_by, event.offer.handoff.constraints.deadline or 0)


# --- pulling offers --------------------------------------------------------------------------------


class OfferPullers:
    """Pulls from the inbox of each intent that `follow` names, until `drain` or `close`.

    All agents that list an intent share its inbox; each offer in it is delivered to one of them at a time.
    A new consumer begins with the oldest offer in the log. An offer whose `claim_by` has passed is only
    acknowledged.

    Args:
        on_offer: handles each offer, as in `Puller`.
        slots: limit of offers of one intent requested or in hand.
        expires_s: returns how long a pull lasts; less than the consumers' ack wait.
    """

    def __init__(self, bus: Bus, on_offer: Handler, *, slots: int, expires_s: Callable[[], float]) -> None:
        self._bus = bus
        self._on_offer = on_offer
        self._slots = slots
        self._expires_s = expires_s
        self._pullers: dict[str, Puller] = {}
        """By name of the inbox."""
        self._left: list[Puller] = []
        """Stopped pullers, which may still have offers in hand."""
        self._changing = asyncio.Lock()
        self._stopped = False

    async def follow(self, intents: Iterable[str]) -> None:
        """Begin to pull offers of the intents that are new, and stop pulling those that are not named.

        Offers in hand are finished. Idempotent. Waits for a bus that is away.
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
