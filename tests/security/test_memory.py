"""Attacks on what conversations remember: client `c2` reads, writes and has forgotten what is `c1`'s."""

import msgspec
import pytest

from mesh.bus.roles import API, GET
from mesh.bus.streams import memory_of
from protocol.wire.commands import Forget
from protocol.wire.subjects import ctl, memories, memory
from tests.security.attacks import Tried, stored
from tests.security.scenes import Scene, attempt, told
from tests.servers import fresh


async def remembers(scene: Scene, client: str, conversation: str, value: bytes) -> str:
    """Let the guard write a fact; return its subject."""
    subject = memory(client, conversation, "k")
    scene.expected.add((memory_of(client), subject))
    await (await scene.bus("guard")).publish_durable(subject, value)
    return subject


@pytest.mark.parametrize("attacker", ["c2", "b"])
async def test_nobody_reads_another_clients_conversations(attacker: str, refused: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        talk = fresh()
        theirs = await remembers(scene, "c1", talk, b"the secret of c1")
        await remembers(scene, "c2", talk, b"mine")
        stream, own = memory_of("c1"), GET + memory_of("c2")
        batch = {"seq": 1, "batch": 10_000}
        tries: list[tuple[str, object]] = [
            (GET + stream, batch | {"next_by_subj": memories("c1", talk)}),
            (GET + stream, {"last_by_subj": theirs}),
            (GET + stream, {"multi_last": ["mesh.mem.>"]}),
            (f"{GET}{stream}.{theirs}", None),
            (API + f"STREAM.MSG.GET.{stream}", {"last_by_subj": theirs}),
            (own, {"last_by_subj": theirs}),
            (own, {"multi_last": ["mesh.mem.>"]}),
            (own, batch | {"next_by_subj": "mesh.mem.c1.>"}),
        ]
        bus, answers = await scene.bus(attacker), list[bytes]()
        for subject, body in tries:
            answers += await told(bus, subject, b"" if body is None else msgspec.json.encode(body))
        if attacker == "c2":
            asked = msgspec.json.encode(batch | {"next_by_subj": memories("c2", talk)})
            assert await told(bus, own, asked) == [b"mine"]
        return any(b"the secret of c1" in answer for answer in answers)

    await refused(attack, attacker)


@pytest.mark.parametrize("attacker", ["c2", "c1", "b", "op", "audit"])
async def test_nobody_but_a_guard_writes_what_is_remembered(attacker: str, refused: Tried) -> None:
    """Not even the client whose conversation it is, nor under a name that is its own."""

    async def attack(scene: Scene) -> bool:
        talk, bus = fresh(), await scene.bus(attacker)
        targets = [memory("c1", talk, "k"), memory("c2", talk, "k"), memory("op", talk, "k")]
        for subject in targets:
            await attempt(bus, subject, b'{"conversation":"x","key":"k","at":1}')
        found = [await stored(scene, memory_of(subject.split(".")[2]), subject) for subject in targets]
        return any(found)

    await refused(attack, attacker)


async def test_a_client_cannot_give_an_order_in_anothers_name_to_forget(refused: Tried) -> None:
    """In its own name it can ask, and a guard rejects it: tests/guard/test_memory.py."""

    async def attack(scene: Scene) -> bool:
        order = msgspec.json.encode(Forget(id=fresh(), conversation="c"))
        before = await stored(scene, "CTL", "mesh.ctl.*.c1._")
        await attempt(await scene.bus("c2"), ctl("c1", "_"), order)
        return await stored(scene, "CTL", "mesh.ctl.*.c1._") > before

    await refused(attack, "c2")
