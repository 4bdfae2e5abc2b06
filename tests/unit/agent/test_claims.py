"""An offer is claimed, and held until the guard has said who has the task."""

import asyncio
import time
from typing import cast

import pytest

from mesh.agent import _claims
from mesh.agent._claims import Claims
from mesh.bus.consumer import Message
from mesh.errors import Malformed
from protocol.wire import codec, subjects
from protocol.wire.commands import OfferClaimed, Proposal
from protocol.wire.event_parts import Assignment
from protocol.wire.events import TaskOffered
from protocol.wire.handoff import Constraints, Handoff
from protocol.wire.ids import AgentName, Cause, EventId, RequestId, TurnId
from protocol.wire.records import Ended, Notice, NoticeError
from tests.servers import until

REQUEST = RequestId("client_01ARZ3NDEKTSV4RRFFQ69G5FAV")
OFFER = TurnId("offer")


def offered(claim_in_s: float = 30.0, ends_in_s: float | None = None, to: str = "any-read") -> bytes:
    deadline = None if ends_in_s is None else int((time.time() + ends_in_s) * 1e6)
    handoff = Handoff(
        move="delegate",
        from_agent=AgentName("lead"),
        to_agent=AgentName("any-read"),
        summary="Look.",
        constraints=Constraints(deadline=deadline),
    )
    event = TaskOffered(
        v=2,
        id=EventId(OFFER),
        request=REQUEST,
        n=2,
        at=1,
        cause=Cause("c"),
        prev="0" * 64,
        salt="0" * 32,
        to=AgentName(to),
        lead=TurnId("lead"),
        name="look",
        intent="read",
        offer=Assignment(turn=OFFER, round=0, handoff=handoff, path=(), depth=1),
        claim_by=int((time.time() + claim_in_s) * 1e6),
    )
    return codec.encode(event)


class Delivery:
    """One delivery; `ended` says how it was settled."""

    def __init__(self, data: bytes, inbox: str = "any-read", delivered: int = 1) -> None:
        self.data, self.subject, self.delivered = data, subjects.evt(inbox, REQUEST), delivered
        self.ended: list[str] = []
        self.again_s: list[float] = []
        self.held = 0

    def ack(self) -> None:
        self.ended.append("ack")

    def nak(self, after_s: float = 0.0) -> None:
        self.ended.append("nak")
        self.again_s.append(after_s)

    def in_progress(self) -> None:
        self.held += 1


class Scene:
    """One agent's claims, and what it stored."""

    def __init__(self, *, busy: bool = False) -> None:
        self.stored: list[Proposal] = []
        self.claimed = asyncio.Event()
        self.claims = Claims(self._store, lambda: busy, lambda: 0.01)

    async def _store(self, request: str, proposal: Proposal) -> None:
        self.stored.append(proposal)
        self.claimed.set()

    def offer(self, delivery: Delivery) -> "asyncio.Task[None]":
        return asyncio.create_task(self.claims.on_offer(cast(Message, delivery)))


def ended(why: str) -> Notice:
    return Notice(request=REQUEST, ended=Ended(why=why, turn=OFFER))


@pytest.mark.parametrize(
    ("why", "settled"),
    [
        ("task.opened", "ack"),
        ("ended", "ack"),
        ("cancelled", "ack"),
        ("move.refused", "nak"),
        ("decided", "nak"),
        ("busy", "nak"),
    ],
)
async def test_an_offer_is_held_until_the_guards_word_and_goes_back_only_if_refused(
    why: str, settled: str
) -> None:
    scene, delivery = Scene(), Delivery(offered())
    task = scene.offer(delivery)
    await scene.claimed.wait()
    await until(lambda: delivery.held > 0)
    assert delivery.ended == []
    scene.claims.on_notice(Notice(request=REQUEST, ended=Ended(why="task.opened", turn="another")))
    scene.claims.on_notice(ended(why))
    await task
    assert delivery.ended == [settled]
    assert scene.stored == [OfferClaimed(turn=OFFER, round=0)]


async def test_an_offer_that_was_refused_is_not_claimed_again_by_this_agent() -> None:
    scene, first, again = Scene(), Delivery(offered()), Delivery(offered())
    task = scene.offer(first)
    await scene.claimed.wait()
    scene.claims.on_notice(ended("move.refused"))
    await task
    await scene.offer(again)
    assert again.ended == ["nak"]
    assert len(scene.stored) == 1


@pytest.mark.parametrize(("why", "settled"), [("task.opened", "ack"), ("decided", "nak")])
async def test_an_offer_is_held_while_its_request_is_frozen_until_the_claim_is_decided(
    monkeypatch: pytest.MonkeyPatch, why: str, settled: str
) -> None:
    monkeypatch.setattr(_claims, "AGAIN_S", 0.01)
    scene, delivery = Scene(), Delivery(offered(claim_in_s=-60.0, ends_in_s=60.0))
    task = scene.offer(delivery)
    for claims in (1, 2, 3):
        await until(lambda: len(scene.stored) >= claims)  # noqa: B023  # it is awaited here
        scene.claims.on_notice(ended("move.deferred"))
    assert delivery.ended == []
    while not task.done():
        scene.claims.on_notice(ended(why))
        await asyncio.sleep(0)
    assert delivery.ended == [settled]


async def test_an_agent_that_was_busy_claims_the_offer_again() -> None:
    scene = Scene()
    for claims in (1, 2):
        delivery = Delivery(offered())
        task = scene.offer(delivery)
        await until(lambda: len(scene.stored) == claims)  # noqa: B023  # it is awaited here
        scene.claims.on_notice(ended("busy"))
        await task


async def test_a_claim_that_is_rejected_is_known_by_its_digest() -> None:
    scene, delivery = Scene(), Delivery(offered())
    task = scene.offer(delivery)
    await scene.claimed.wait()
    digest = codec.body_digest(codec.encode(scene.stored[0]))
    scene.claims.on_notice(
        Notice(request=REQUEST, error=NoticeError(code="known_move", detail="no"), digest=digest)
    )
    await task
    assert delivery.ended == ["nak"]


async def test_a_claim_without_a_word_is_stored_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_claims, "AGAIN_S", 0.01)
    scene, delivery = Scene(), Delivery(offered())
    task = scene.offer(delivery)
    await until(lambda: len(scene.stored) > 2)
    scene.claims.on_notice(ended("task.opened"))
    await task
    assert delivery.ended == ["ack"]


# --- an offer in the agent's own inbox ---------------------------------------------------------------


def alone(delivered: int = 1) -> Delivery:
    return Delivery(offered(to="reader"), "reader", delivered)


@pytest.mark.parametrize(
    ("why", "settled"),
    [
        *(
            (why, "ack")
            for why in ("task.opened", "ended", "cancelled", "move.refused", "decided", "move.deferred")
        ),
        ("busy", "nak"),
    ],
)
async def test_an_offer_that_is_this_agents_alone_goes_back_only_while_it_may_be_claimed_later(
    why: str, settled: str
) -> None:
    scene, delivery = Scene(), alone()
    task = scene.offer(delivery)
    await scene.claimed.wait()
    scene.claims.on_notice(ended(why))
    await task
    assert delivery.ended == [settled]
    assert scene.stored == [OfferClaimed(turn=OFFER, round=0)]


async def test_without_a_word_it_leaves_its_slot_to_other_work_and_comes_again_ever_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_claims, "AGAIN_S", 0.01)
    monkeypatch.setattr(_claims, "SILENT_MOST_S", 0.05)
    scene = Scene()
    for delivered, most_s in ((1, 0.02), (4, 0.08), (400, 0.1)):
        delivery = alone(delivered)
        await scene.offer(delivery)
        assert delivery.ended == ["nak"]
        assert most_s / 10 <= delivery.again_s[0] <= most_s


async def test_one_offer_in_two_inboxes_is_claimed_once_at_a_time() -> None:
    scene, shared, own = Scene(), Delivery(offered()), alone()
    task = scene.offer(shared)
    await scene.claimed.wait()
    await scene.offer(own)
    assert own.ended == ["nak"]
    scene.claims.on_notice(ended("move.refused"))
    await task
    after = alone()
    await scene.offer(after)
    assert (shared.ended, after.ended, len(scene.stored)) == (["nak"], ["ack"], 1)


async def test_nobody_claims_what_is_over_nor_while_busy() -> None:
    scene, late, busy = Scene(), Delivery(offered(-1)), Delivery(offered())
    await scene.offer(late)
    assert (late.ended, scene.stored) == (["ack"], [])
    crowded = Scene(busy=True)
    await crowded.offer(busy)
    assert (busy.ended, crowded.stored) == (["nak"], [])
    for _ in range(20):
        await crowded.offer(busy)
    assert len(set(busy.again_s)) > 1, "in step, it would come to the same agent each time"
    assert all(0.2 <= again_s <= 2.0 for again_s in busy.again_s)


async def test_an_offer_that_is_over_while_it_is_held_is_done_with() -> None:
    scene, delivery = Scene(), Delivery(offered(0.05))
    await scene.offer(delivery)
    assert delivery.ended == ["ack"]


async def test_an_agent_that_leaves_gives_its_offer_back() -> None:
    scene, delivery = Scene(), Delivery(offered())
    task = scene.offer(delivery)
    await scene.claimed.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert delivery.ended == ["nak"]


@pytest.mark.parametrize(
    "wrong", [("any-other", offered()), ("any-read", b"{}")], ids=["elsewhere", "nothing"]
)
async def test_what_is_no_offer_is_malformed(wrong: tuple[str, bytes]) -> None:
    inbox, data = wrong
    with pytest.raises(Malformed):
        await Scene().offer(Delivery(data, inbox))
