"""An attack: what a hostile agent, client, viewer or operator tries with its own credentials.

Agent `b` attacks, mostly `a`; client `c2` attacks `c1`. Every attack says whether it had its effect: it
must where the protection lacks, and must not where it does not; and there, nothing at all may have been
stored but under the attacker's own name.
"""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from mesh.bus.event_log import JetStreamLog
from mesh.errors import ApiCode, ApiError
from protocol.wire.subjects import evt
from tests.security.scenes import Scene, quiet
from tests.servers import queues

Attack = Callable[[Scene], Awaitable[bool]]
Tried = Callable[..., Awaitable[None]]
"""Tries an attack where one protection lacks, then on the shipped mesh; `b` attacks if nobody is named."""

BOTH_WAYS = pytest.mark.parametrize("shipped", ["nkeys", "jwt"], indirect=True)
"""Tries an attack on both meshes that ship: one that lists keys, and one of an operator."""

OWN = {
    "b": (".b.", "mesh.card.b", "mesh.dead.b"),
    "c2": (".c2.",),
    "op": (".op.",),
    "audit": ("(nothing)",),
}


async def has_effect(scene: Scene, attack: Attack, attacker: str = "b") -> bool:
    """Run an attack; on the shipped mesh, also see that nothing foreign was stored or changed by it."""
    before = await scene.snapshot()
    effect = await attack(scene)
    if scene.shipped:
        await quiet(await scene.admin())
        foreign = [
            (stream, subject)
            for stream, subject in await scene.stored_since(before)
            if not any(own in subject for own in OWN[attacker]) and (stream, subject) not in scene.expected
        ]
        after = await scene.snapshot()
        assert foreign == []
        assert after.removed == before.removed
        assert after.configs == before.configs
        assert after.consumers == before.consumers
    scene.expected.clear()
    return effect


def tried(loose: Scene, shipped: Scene) -> Tried:
    """Return what asserts that an attack has its effect on a loose mesh, and none on the shipped one."""

    async def twice(attack: Attack, attacker: str = "b") -> None:
        assert await has_effect(loose, attack, attacker)
        assert not await has_effect(shipped, attack, attacker)

    return twice


async def append(scene: Scene, to: str, request: str) -> int:
    """Let the guard write the first event of a request, as it should be."""
    guard = await scene.bus("guard")
    scene.expected.add(("LOG", evt(to, request)))
    body = msgspec.json.encode({"n": 0, "secret": request})
    return await JetStreamLog(guard).append(to, request, body, after=0)


async def stored(scene: Scene, stream: str, subject: str) -> int:
    """Return how many messages lie under a subject."""
    admin = await scene.admin()
    asked = {"subjects_filter": subject}
    infos = [await admin.api(f"STREAM.INFO.{name}", asked) for name in await queues(admin, stream)]
    return sum(sum((info["state"].get("subjects") or {}).values()) for info in infos)


async def newest(scene: Scene, stream: str, subject: str) -> int:
    """Return the sequence of the newest message under a subject; 0 if there is none."""
    admin, found = await scene.admin(), 0
    for name in await queues(admin, stream):
        try:
            answer = await admin.api(f"STREAM.MSG.GET.{name}", {"last_by_subj": subject})
        except ApiError as error:
            if error.err_code != ApiCode.NO_MESSAGE_FOUND:
                raise
        else:
            found = max(found, int(answer["message"]["seq"]))
    return found
