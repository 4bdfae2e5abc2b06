"""Attacks on the streams themselves: to alter, erase or copy them."""

import msgspec
import pytest

from mesh.bus.roles import API
from protocol.wire.subjects import dead
from tests.security.attacks import OWN, Tried, append, has_effect
from tests.security.scenes import Scene, attempt, told
from tests.servers import fresh


@pytest.mark.parametrize("attacker", ["b", "c2", "audit", "op", "guard"])
@pytest.mark.parametrize(
    ("verb", "body"),
    [
        pytest.param("STREAM.PURGE.DEAD", {}, id="purge"),
        pytest.param("STREAM.PURGE.STEPS-b", {"filter": "mesh.step.b.>"}, id="purge-steps"),
        pytest.param("STREAM.MSG.DELETE.DEAD", {"seq": 1}, id="delete-a-message"),
        pytest.param("STREAM.UPDATE.DEAD", {"name": "DEAD", "subjects": ["mesh.dead.*"]}, id="update"),
        pytest.param("STREAM.DELETE.DEAD", {}, id="delete"),
        pytest.param("STREAM.CREATE.SPY", {"name": "SPY", "subjects": ["spy.>"]}, id="create"),
        pytest.param("STREAM.SNAPSHOT.LOG", {"deliver_subject": "x"}, id="copy"),
        pytest.param("STREAM.INFO.LOG", {"subjects_filter": ">"}, id="list-all-subjects"),
        pytest.param("ACCOUNT.PURGE.CORE", {}, id="purge-the-account"),
        pytest.param("STREAM.LEADER.STEPDOWN.LOG", {}, id="step-down"),
    ],
)
async def test_nobody_but_the_admin_changes_a_stream(
    verb: str, body: dict[str, object], attacker: str, shipped: Scene
) -> None:
    """The next test shows what becomes of a stream where these are allowed."""

    async def attack(scene: Scene) -> bool:
        answers = []
        for prefix in (API, "mesh.api."):
            answers += await told(await scene.bus(attacker), prefix + verb, msgspec.json.encode(body))
        return bool(answers)

    assert not await has_effect(shipped, attack, attacker if attacker in OWN else "b")


@pytest.mark.parametrize("attacker", ["b", "c2"])
async def test_no_agent_or_client_lists_streams(attacker: str, shipped: Scene) -> None:
    async def attack(scene: Scene) -> bool:
        prefixes = (API, "mesh.api.")
        return any([await told(await scene.bus(attacker), f"{each}STREAM.LIST", b"{}") for each in prefixes])

    assert not await has_effect(shipped, attack, attacker if attacker in OWN else "b")


@pytest.mark.parametrize("attacker", ["audit", "op"])
async def test_no_viewer_has_the_server_list_every_subject(attacker: str, refused: Tried) -> None:
    """22 bytes would cost the server the list of all requests: 75 ms and 2.4 MB at 100,000 of them."""

    async def attack(scene: Scene) -> bool:
        request, bus = fresh(), await scene.bus(attacker)
        await append(scene, "a", request)
        body, answers = msgspec.json.encode({"subjects_filter": ">", "offset": 0}), list[bytes]()
        for prefix in (API, "mesh.api."):
            for verb in ("STREAM.INFO.LOG", "STREAM.LIST"):
                answers += await told(bus, prefix + verb, body)
        assert any(b"stream_list_response" in each for each in answers)
        return any(request.encode() in each for each in answers)

    await refused(attack, attacker)


@pytest.mark.parametrize("attacker", ["b", "c2", "audit", "op"])
async def test_only_admin_and_guards_learn_which_streams_there_are(attacker: str, shipped: Scene) -> None:
    async def attack(scene: Scene) -> bool:
        prefixes = (API, "mesh.api.")
        return any([await told(await scene.bus(attacker), f"{each}STREAM.NAMES", b"{}") for each in prefixes])

    assert not await has_effect(shipped, attack, attacker if attacker in OWN else "b")


async def test_with_everything_allowed_a_stream_is_erased_with_one_message(
    without_permissions: Scene,
) -> None:
    bus, admin = await without_permissions.bus("b"), await without_permissions.admin()
    await bus.publish_durable(dead("b"), b"{}")
    await attempt(bus, API + "STREAM.MSG.DELETE.DEAD", b'{"seq":1}')
    await bus.publish_durable(dead("b"), b"{}")
    assert b'"success":true' in (await told(bus, API + "STREAM.PURGE.DEAD"))[0]
    assert (await admin.api("STREAM.INFO.DEAD"))["state"]["messages"] == 0
    update = (await admin.api("STREAM.INFO.DEAD"))["config"]
    encoded = msgspec.json.encode({**update, "max_msgs": 3})
    assert b'"max_msgs":3' in (await told(bus, API + "STREAM.UPDATE.DEAD", encoded))[0]
