"""Attacks by the wake-ups that follow a change of the fleet and of cards, which agents hear."""

from mesh.bus.roles import TOLD_AGENTS
from protocol.wire import subjects
from protocol.wire.subjects import CONF_CHANGED
from tests.security.attacks import has_effect
from tests.security.scenes import Scene, attempt, hearing, quiet

OF_GUARDS = ("policy.default", "prices", "freeze", "breaker.a")
"""What changes besides, and is nobody's business but guards'."""


async def test_an_agent_hears_of_changes_that_concern_it_and_nothing_of_what_they_say(
    shipped: Scene, without_permissions: Scene
) -> None:
    async def attack(scene: Scene) -> bool:
        bus, admin = await scene.bus("b"), await scene.admin()
        tries = (f"{CONF_CHANGED}.>", *(f"{CONF_CHANGED}.{what}" for what in OF_GUARDS), *TOLD_AGENTS)
        got = []
        for subject in tries:
            async with hearing(bus, subject) as heard:
                for what in OF_GUARDS:
                    scene.expected.add(("CONF", f"mesh.conf.{what}"))
                    await admin.publish_durable(f"mesh.conf.{what}", b'{"secret":1}')
                scene.expected.add(("CARDS", subjects.card("a")))
                await (await scene.bus("a")).publish_durable(subjects.card("a"), b'{"secret":1}')
                await bus.flush()
                await quiet(bus)
                got += heard
        assert (f"{CONF_CHANGED}.card.a", b"") in got  # it does listen
        return any(body or subject.removeprefix(f"{CONF_CHANGED}.") in OF_GUARDS for subject, body in got)

    assert await has_effect(without_permissions, attack)
    assert not await has_effect(shipped, attack)


async def test_an_agent_cannot_tell_others_that_something_changed(
    shipped: Scene, without_permissions: Scene
) -> None:
    """By the answer to a message of its own it can, as with every note: that is worth a look a second."""

    async def attack(scene: Scene) -> bool:
        other, bus = await scene.bus("a"), await scene.bus("b")
        got = []
        for subject in TOLD_AGENTS:
            async with hearing(other, subject) as heard:
                await attempt(bus, subject.replace("*", "a"), b"forged")
                await other.flush()
                await quiet(other)
                got += heard
        return any(body == b"forged" for _, body in got)

    assert await has_effect(without_permissions, attack)
    assert not await has_effect(shipped, attack)
