"""Attacks by forks: who forges `forked_from` gets nothing that they could not have had.

A guard takes a fork from operators alone, and an agent's record is read by that agent alone.
"""

from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from mesh.agent import Move, ToolRefused, Turn, agent, tool
from mesh.agent._fork import RecordBefore
from mesh.bus.stores import JetStreamSteps
from mesh.client import Client
from mesh.errors import BusError
from mesh.testing import EmbeddedBus
from protocol.wire import codec, events, subjects
from protocol.wire.commands import ForkedFrom, Submit
from protocol.wire.ids import AgentName, RequestId, TurnId
from protocol.wire.records import Record
from tests.certain import is_, known
from tests.guard.stage import Stage, furnished_mesh, staged
from tests.security.attacks import Tried
from tests.security.scenes import Scene
from tests.servers import PATIENCE_S, fresh

SECRET = "the secret of a"
CALL = ("call", "look", "d" * 64)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBus]:
    async with furnished_mesh(tmp_path_factory.mktemp("mesh")) as mesh:
        yield mesh


@pytest_asyncio.fixture
async def stage(furnished: EmbeddedBus) -> AsyncIterator[Stage]:
    async with staged(furnished, guards=1) as own:
        yield own


def forged(**fields: object) -> ForkedFrom:
    known_fields = {"request": RequestId(f"c1_{'0' * 26}"), "n": 0, "digest": "0" * 64}
    return ForkedFrom(**{**known_fields, **fields})  # type: ignore[arg-type]


async def test_no_agent_reads_anothers_record_by_a_fork_that_names_it(refused: Tried) -> None:
    """The runtime's own reader, in the hands of `b`, asked for what `a` recorded."""

    async def attack(scene: Scene) -> bool:
        request = fresh()
        subject = subjects.step("a", request, "t", "0-0")
        scene.expected.add(("STEPS", subject))
        record = Record(
            kind=CALL[0], name=CALL[1], digest=CALL[2], version="1", nonce="n", at=1, value=SECRET
        )
        await (await scene.bus("a")).publish_durable(subject, msgspec.json.encode(record))
        fork = forged(request=RequestId(request), journals={AgentName("a"): (TurnId("t"),)})
        before = RecordBefore(JetStreamSteps(await scene.bus("b"), "a"), "a", fork)
        try:
            found = await before.step(CALL, 0)
        except BusError:
            return False
        return found is not None and found.value == SECRET

    await refused(attack)


@pytest.mark.parametrize("sender", ["c1", "b"])
async def test_nobody_but_an_operator_forks(sender: str, stage: Stage) -> None:
    """The very same submit is opened when it is an operator's: that is what an attacker would have."""
    wanted = Submit(text="go on", to=AgentName("a"), forked_from=forged())
    allowed = await (await stage.client("op")).submit_whole(wanted)
    assert (await stage.reached(allowed, events.RequestOpened)).forked_from is not None

    attacker = Client(await stage.bus(sender, "forger"), sender)
    request = await attacker.submit_whole(wanted)
    await stage.buried("not_allowed", request=request)
    assert await stage.log(request) == []


async def test_what_an_operator_makes_up_answers_an_agent_by_nothing_but_its_own_record(
    stage: Stage,
) -> None:
    """A forged fork names `a`'s journal as `b`'s: b finds nothing there, runs no effect, and goes on."""
    ran: list[str] = []

    @tool(effect="idempotent")
    async def pay(idempotency_key: str = "") -> str:
        """Pay."""
        ran.append("paid")
        return SECRET

    @agent(name="a", version="1", tools=[pay])
    async def pays(turn: Turn) -> Move:
        return turn.complete(await turn.call(pay))

    @agent(name="b", version="1", tools=[pay])
    async def pays_too(turn: Turn) -> Move:
        try:
            return turn.complete(await turn.call(pay))
        except ToolRefused as no:
            return turn.complete(no.reason)

    for each in (pays, pays_too):
        await stage.runtime(each)
    client = await stage.client()
    old = await client.submit("pay", to="a")
    assert (await client.wait(old, timeout_s=PATIENCE_S)).answer == SECRET
    opened = is_((await stage.log(old))[0], events.RequestOpened)
    body = (await stage.bodies(old))[0]
    wanted = forged(
        request=old, digest=codec.body_digest(body), journals={AgentName("b"): (opened.work.turn,)}
    )
    operator = await stage.client("op")
    new = await operator.submit_whole(Submit(text="pay", to=AgentName("b"), forked_from=wanted))
    assert (await operator.wait(new, timeout_s=PATIENCE_S)).answer == "fork.not_recorded"
    assert ran == ["paid"]
    assert known(opened.work).forked_from is None
