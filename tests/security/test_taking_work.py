"""Attacks on other agents' work: on what acknowledges it, and on the consumers that give it."""

import asyncio

import msgspec
import pytest

from mesh.bus.consumer import Message, Puller
from mesh.bus.roles import API, NEXT
from protocol.wire.subjects import card, intent_inbox
from tests.security.attacks import BOTH_WAYS, Tried, append
from tests.security.scenes import Scene, attempt, quiet, told
from tests.servers import eventually, fresh, until


async def hold_work(scene: Scene, agent: str = "a", inbox: str = "a") -> tuple[Puller, list[Message]]:
    """Let an agent have one message of an inbox in hand, and ask for another."""
    bus = await scene.bus(agent)
    held: list[Message] = []
    forever = asyncio.Event()

    async def keep(message: Message) -> None:
        held.append(message)
        await forever.wait()

    puller = Puller(bus, "LOG", f"in-{inbox}", keep, slots=2, expires_s=4.0)
    await puller.start()
    await append(scene, inbox, fresh())
    await until(lambda: bool(held))
    return puller, held


@pytest.mark.parametrize(
    ("holder", "inbox"),
    [pytest.param("a", "a", id="its-own"), pytest.param("e", "any-review", id="an-offer")],
)
@pytest.mark.parametrize("what", [b"+ACK", b"+TERM", b"-NAK"], ids=["ack", "term", "nak"])
async def test_an_agent_cannot_acknowledge_for_another(
    what: bytes, holder: str, inbox: str, refused: Tried
) -> None:
    async def attack(scene: Scene) -> bool:
        puller, held = await hold_work(scene, holder, inbox)
        try:
            subject = held[0]._incoming.reply
            attacker, admin = await scene.bus("b"), await scene.admin()
            await attempt(attacker, subject, what)
            await attempt(attacker, card("b"), b"{}", reply=subject)
            await attempt(attacker, subject.replace(f".in-{inbox}.", ".in-b."), what)
            await quiet(admin)

            async def is_taken() -> bool:
                info = await admin.api(f"CONSUMER.INFO.LOG.in-{inbox}")
                return bool(info["num_ack_pending"] == 0 or len(held) > 1)

            if not scene.shipped:
                await eventually(is_taken)  # what is given back comes again a little later
            return await is_taken()
        finally:
            await held[-1].ack_sync()
            await puller.close()

    await refused(attack)


@pytest.mark.parametrize("inbox", ["e", intent_inbox("read on")])
@BOTH_WAYS
async def test_an_agent_cannot_pull_anothers_work_nor_offers_of_an_intent_that_it_does_not_list(
    inbox: str, refused: Tried
) -> None:
    async def attack(scene: Scene) -> bool:
        await append(scene, inbox, fresh())
        consumer = f"LOG.in-{inbox}"
        got = await told(await scene.bus("b"), NEXT + consumer, b'{"batch":100,"no_wait":true}')
        delivered = (await (await scene.admin()).api(f"CONSUMER.INFO.{consumer}"))["delivered"][
            "consumer_seq"
        ]
        return bool(delivered or got)

    await refused(attack)


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        pytest.param(
            "CONSUMER.CREATE.LOG.spy",
            {"stream_name": "LOG", "config": {"name": "spy", "ack_policy": "none", "mem_storage": True}},
            id="a-consumer-of-its-own",
        ),
        pytest.param(
            "CONSUMER.CREATE.LOG.in-d",
            {
                "stream_name": "LOG",
                "config": {
                    "name": "in-d",
                    "durable_name": "in-d",
                    "filter_subject": "mesh.evt.d.*",
                    "ack_policy": "explicit",
                    "ack_wait": 3600 * 10**9,
                    "max_deliver": -1,
                },
            },
            id="another-lease-for-anothers",
        ),
        pytest.param("CONSUMER.DELETE.LOG.in-c", {}, id="delete-anothers"),
        pytest.param("CONSUMER.PAUSE.LOG.in-d", {"pause_until": "2100-01-01T00:00:00Z"}, id="pause-anothers"),
        pytest.param("CONSUMER.RESET.LOG.in-d", {"seq": 1}, id="reset-anothers"),
        pytest.param("CONSUMER.RESET.LOG.in-b", {"seq": 1}, id="reset-its-own"),
        pytest.param("CONSUMER.RESET.LOG.in-any-review", {"seq": 1}, id="reset-an-intents"),
    ],
)
@pytest.mark.parametrize("attacker", ["b", "c2", "audit", "op"])
async def test_nobody_takes_or_alters_a_consumer(
    verb: str, body: dict[str, object], attacker: str, refused: Tried
) -> None:
    async def attack(scene: Scene) -> bool:
        answers = []
        for prefix in (API, "mesh.api."):
            answers += await told(await scene.bus(attacker), prefix + verb, msgspec.json.encode(body))
        return any(b'"error"' not in answer for answer in answers)

    if attacker == "b" and "in-c" not in verb:
        await refused(attack, attacker)
