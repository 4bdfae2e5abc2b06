"""Attacks that read what is another's, listen to it, or speak in another's feed or name."""

import contextlib

import msgspec
import pytest

from mesh.bus.connection import connect
from mesh.bus.event_log import JetStreamLog
from mesh.bus.lane import ping, statistics
from mesh.bus.roles import API, GET, GUARD_ANSWERS
from mesh.errors import BusError
from protocol.wire.subjects import card, ctl, end, evt, live, note, prop, questions, shadow_differs, step
from tests.security.attacks import BOTH_WAYS, Tried, append, has_effect
from tests.security.scenes import Scene, attempt, heard_on, quiet, told
from tests.servers import fresh


@BOTH_WAYS
async def test_an_agent_cannot_read_the_log(refused: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        request = fresh()
        seq = await append(scene, "a", request)
        batch = {"seq": 1, "batch": 10_000, "next_by_subj": f"mesh.evt.*.{request}"}
        tries = [
            (GET + "LOG", {"seq": seq}),
            (GET + "LOG", batch),
            (GET + "LOG", {"multi_last": [f"mesh.evt.*.{request}"]}),
            (GET + f"LOG.{evt('a', request)}", None),
            (API + "STREAM.MSG.GET.LOG", {"seq": seq}),
            ("mesh.api.STREAM.MSG.GET.LOG", {"seq": seq}),
        ]
        answers = []
        for subject, body in tries:
            data = b"" if body is None else msgspec.json.encode(body)
            answers.append(await told(await scene.bus("b"), subject, data))
        read = [any(request.encode() in each or b'"message"' in each for each in got) for got in answers]
        if not scene.shipped:
            assert read[:5] == [True] * 5  # each way is a way
        return any(read)

    await refused(attack)


@BOTH_WAYS
async def test_an_agent_reads_its_own_steps_and_nobody_elses(refused: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        request = fresh()
        subject = step("a", request, "t", "0-0")
        scene.expected.add(("STEPS", subject))
        await (await scene.bus("a")).publish_durable(subject, b"the secret of a")
        scene.expected.add(("ENDS", end("a", request, "t")))
        await (await scene.bus("guard")).publish_durable(end("a", request, "t"), b"the secret of a")
        await (await scene.bus("b")).publish_durable(step("b", request, "t", "0-0"), b"mine")
        last = {"last_by_subj": subject}
        own = GET + "STEPS-b." + step("b", request, "t", "0-0")
        tries = [
            (GET + "STEPS-a." + subject, b""),
            (GET + f"STEPS-a.mesh.step.*.{request}.t.0-0", b""),
            (GET + "STEPS-a.mesh.step.>", b""),
            (GET + f"ENDS.mesh.end.*.{request}.t", b""),
            (GET + "ENDS." + end("a", request, "t"), b""),
            (GET + "STEPS-a", msgspec.json.encode(last)),
            (own, msgspec.json.encode(last)),
            (own, msgspec.json.encode({"multi_last": ["mesh.step.>"]})),
            (own, b'{"seq":1,"batch":1000}'),
        ]
        bus = await scene.bus("b")
        answers = [answer for subject, data in tries for answer in await told(bus, subject, data)]
        assert await told(bus, own) == [b"mine"]
        return any(b"the secret of a" in answer for answer in answers)

    await refused(attack)


@BOTH_WAYS
async def test_a_client_cannot_read_anothers_answer(refused: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        theirs, mine = fresh("c1"), fresh("c2")
        seq = await append(scene, "c1", theirs)
        await append(scene, "c2", mine)
        own = GET + "LOG." + evt("c2", mine)
        scene.expected.add(("ASKS", questions("c1", theirs)))
        guard = await scene.bus("guard")
        await guard.publish_durable(questions("c1", theirs), b'{"n":1,"open":[],"of":"c1"}')
        tries = [
            (GET + "ASKS." + questions("c1", theirs), b""),
            (GET + f"ASKS.mesh.ask.*.{theirs}", b""),
            (GET + "ASKS", msgspec.json.encode({"last_by_subj": questions("c1", theirs)})),
            (GET + "LOG." + evt("c1", theirs), b""),
            (GET + f"LOG.mesh.evt.*.{theirs}", b""),
            (GET + "LOG.mesh.evt.>", b""),
            (GET + "LOG", b'{"seq":%d}' % seq),
            (own, b'{"seq":%d}' % seq),
            (own, msgspec.json.encode({"last_by_subj": evt("c1", theirs)})),
            (own, msgspec.json.encode({"multi_last": ["mesh.evt.>"]})),
            (own, b'{"seq":1,"batch":100000}'),
            (own, msgspec.json.encode({"seq": 1, "next_by_subj": "mesh.evt.c1.*"})),
            (API + "STREAM.MSG.GET.LOG", b'{"seq":%d}' % seq),
        ]
        bus = await scene.bus("c2")
        answers = [answer for subject, data in tries for answer in await told(bus, subject, data)]
        assert any(mine.encode() in answer for answer in await told(bus, own))
        return any(theirs.encode() in answer or b'"message"' in answer for answer in answers)

    await refused(attack, "c2")


@pytest.mark.parametrize("attacker", ["b", "c2"])
async def test_neither_an_agent_nor_a_client_reads_what_a_shadow_would_have_decided(
    attacker: str, refused: Tried
) -> None:
    async def attack(scene: Scene) -> bool:
        subject = shadow_differs("default", fresh(), 1)
        scene.expected.add(("SHADOW", subject))
        await (await scene.bus("guard")).publish_durable(subject, subject.encode())
        last = msgspec.json.encode({"last_by_subj": subject})
        tries = [
            (f"{GET}SHADOW.{subject}", b""),
            (GET + "SHADOW", last),
            (GET + "SHADOW", b'{"seq":1,"batch":100000}'),
            (API + "STREAM.MSG.GET.SHADOW", last),
        ]
        bus = await scene.bus(attacker)
        answers = [answer for asked, data in tries for answer in await told(bus, asked, data)]
        return any(subject.encode() in answer for answer in answers)

    await refused(attack, attacker)


@pytest.mark.parametrize(
    ("attacker", "subject", "speaker"),
    [
        pytest.param("c2", "mesh.note.c1.*", "guard", id="a-client-to-anothers-notes"),
        pytest.param("c2", "mesh.note.>", "guard", id="a-client-to-all-notes"),
        pytest.param("b", "mesh.note.c1.*", "guard", id="an-agent-to-a-clients-notes"),
        pytest.param("audit", "mesh.note.>", "guard", id="a-viewer-to-notes"),
        pytest.param("op", "mesh.note.c1.*", "guard", id="an-operator-to-a-clients-notes"),
        pytest.param("c2", "mesh.live.c1.>", "a", id="a-client-to-anothers-live-output"),
        pytest.param("b", "mesh.live.>", "a", id="an-agent-to-live-output"),
        pytest.param("b", "_I.a.>", "", id="an-agent-to-anothers-answers"),
        pytest.param("b", "_I.guard.>", "", id="an-agent-to-the-guards-answers"),
        pytest.param("c2", "_I.c1.>", "", id="a-client-to-anothers-answers"),
        pytest.param("b", ">", "a", id="an-agent-to-everything"),
        pytest.param("b", "$JS.EVENT.ADVISORY.>", "", id="an-agent-to-advisories"),
    ],
)
@BOTH_WAYS
async def test_nobody_listens_to_what_is_anothers(
    attacker: str, subject: str, speaker: str, shipped: Scene, without_permissions: Scene
) -> None:
    async def attack(scene: Scene) -> bool:
        bus, request = await scene.bus(attacker), fresh()
        async with heard_on(bus, subject) as heard:
            if speaker == "guard":
                await (await scene.bus("guard")).publish(note("c1", request), b"a notice")
            elif speaker:
                await (await scene.bus("a")).publish(live("c1", request, "a", "t"), b"a token")
            for name in ("a", "c1"):  # something is answered to each
                await attempt(await scene.bus(name), card("a") if name == "a" else prop("c1", request), b"{}")
            await JetStreamLog(await scene.bus("guard")).head(request)
            await attempt(await scene.bus("admin"), API + "STREAM.INFO.NONE")
            if "ADVISORY" in subject:
                await (await scene.admin()).api("CONSUMER.PAUSE.LOG.in-d", {})
            await quiet(await scene.admin())
            await bus.flush()
            return bool(heard)

    assert await has_effect(without_permissions, attack, attacker)
    before = await shipped.snapshot()
    assert not await attack(shipped)
    assert (await shipped.snapshot()).configs == before.configs


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(live("c1", "r", "a", "t"), id="live-output-of-another"),
        pytest.param(note("c1", "r"), id="a-note-to-a-client"),
    ],
)
@pytest.mark.parametrize("attacker", ["b", "c2"])
@BOTH_WAYS
async def test_nobody_speaks_in_anothers_feed(subject: str, attacker: str, refused: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        client = await scene.bus("c1")
        listening = "mesh.live.c1.>" if ".live." in subject else "mesh.note.c1.*"
        async with heard_on(client, listening) as heard:
            await attempt(await scene.bus(attacker), subject, b"a lie", reply="nowhere")
            await client.flush()
            await quiet(await scene.admin())
            return bool(heard)

    await refused(attack, attacker)


async def test_an_agent_cannot_answer_that_another_is_there(refused: Tried) -> None:
    """The guard asks `$SRV.PING.<agent>`: nobody else may say yes, nor send an answer unasked."""

    async def attack(scene: Scene) -> bool:
        attacker, guard = await scene.bus("b"), await scene.bus("guard")
        with contextlib.suppress(BusError):
            await attacker.subscribe(
                "$SRV.PING.a", lambda message: attacker.send(message.reply, b'{"name":"a"}') and None
            )
        for guess in ("_R_.guess", guard.inbox + "1", guard.inbox + "2"):
            attacker.send(guess, b'{"name":"a"}')
        try:
            answer = await guard.request("$SRV.PING.a", timeout_s=3.0)
        except BusError:
            return False
        return b'"a"' in answer.data

    await refused(attack)


@pytest.mark.parametrize("attacker", ["b", "c2", "audit", "op"])
@BOTH_WAYS
async def test_nobody_answers_in_a_guards_place(refused: Tried, attacker: str) -> None:
    """Doctor asks `$SRV.STATS.guard` what each guard measured: a lie would have people set clocks."""

    async def attack(scene: Scene) -> bool:
        bus, admin = await scene.bus(attacker), await scene.bus("admin")
        for subject in ("$SRV.STATS.guard", "$SRV.*.guard", "$SRV.STATS.*", "$SRV.>"):
            with contextlib.suppress(BusError):
                await bus.subscribe(subject, lambda message: bus.send(message.reply, b"a lie") and None)
        for guess in ("_R_.guess", admin.inbox + "1", admin.inbox + "2"):
            bus.send(guess, b"a lie")
        return b"a lie" in await statistics(admin, "guard")

    await refused(attack, attacker)


@BOTH_WAYS
async def test_a_guard_answers_operators_and_the_admin(shipped: Scene) -> None:
    """The control to the one above, and who may not ask."""
    guard = await shipped.bus("guard")
    for subject in GUARD_ANSWERS:
        await guard.subscribe(subject, lambda message: guard.send(message.reply, b"measured") and None)
    for name in ("op", "admin"):
        assert await statistics(await shipped.bus(name), "guard") == [b"measured"]
        assert await ping(await shipped.bus(name), "guard") == b"measured"
    for name in ("c1", "audit", "b"):
        with pytest.raises(BusError):
            await ping(await shipped.bus(name), "guard")


@BOTH_WAYS
async def test_an_agent_answers_for_itself(shipped: Scene) -> None:
    """The control to the one above: what is denied to `b` works for `a`, for guards and operators."""
    agent = await shipped.bus("a")
    for subject in ("$SRV.PING.a", "$SRV.PING"):
        await agent.subscribe(subject, lambda message: agent.send(message.reply, b'{"name":"a"}') and None)
    assert b'"a"' in (await (await shipped.bus("guard")).request("$SRV.PING.a")).data
    assert b'"a"' in (await (await shipped.bus("op")).request("$SRV.PING")).data
    for name in ("c1", "audit", "b"):
        with pytest.raises(BusError):
            await (await shipped.bus(name)).request("$SRV.PING.a", timeout_s=0.3)


async def test_an_anonymous_connection_is_its_client_and_nobody_else(shipped: Scene) -> None:
    async with await connect(shipped.mesh.url, name="whoever") as bus:
        for subject in (prop("c1", fresh()), ctl("op", fresh()), evt("a", fresh()), card("a")):
            with pytest.raises(BusError):
                await bus.request(subject, b"{}", timeout_s=0.3)
        for subject in ("_I.>", "_I.c1.>", "mesh.note.c1.*", ">"):
            with pytest.raises(BusError):
                await bus.subscribe(subject, lambda message: None)
