"""The client as Python programs take it: typed answers, settings found, and no `async` where none fits."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import mesh.sync
from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.client import AnswerInvalid, Client, Question
from mesh.client.follow import AgentNote
from mesh.errors import Unreachable
from mesh.settings import NoCredentials
from protocol.wire import events
from protocol.wire.moves import Move
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S


class Order(BaseModel):
    number: int


class Invoice(BaseModel):
    order: Order
    cents: int


async def bill(turn: Turn) -> Move:
    if "ask" in turn.facts and turn.reply is None:
        return turn.ask("how much?")
    order = turn.fact("order", Order)
    cents = "a lot" if turn.facts["text"] == "wrong" else turn.reply or 1299
    return turn.complete({"order": order, "cents": cents})


@pytest.fixture
async def billing(stage: Stage) -> Stage:
    await stage.runtime(Agent("a", bill))
    return stage


@pytest.fixture
def environment(billing: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    """A shell that is set up for the client, in a folder of its own."""
    seed = tmp_path / "c1.nk"
    seed.write_text(billing.mesh.keys["c1"].seed)
    seed.chmod(0o600)
    for name, value in {"NATS_URL": billing.mesh.url, "MESH_CREDENTIALS": str(seed)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MESH_NAME", raising=False)
    monkeypatch.chdir(tmp_path)
    return billing


ORDER = {"order": Order(number=7)}
INVOICE = Invoice(order=Order(number=7), cents=1299)


async def test_an_answer_comes_as_the_type_that_its_submit_names(billing: Stage) -> None:
    client = await billing.client()
    request = await client.submit("bill it", facts=ORDER, answer_type=Invoice)
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == INVOICE
    async for item in client.follow(request):
        last = item
    assert getattr(last, "answer", None) == INVOICE


async def test_an_answer_that_does_not_fit_is_told_of_and_kept(billing: Stage) -> None:
    client = await billing.client()
    request = await client.submit("wrong", facts=ORDER, answer_type=Invoice)
    with pytest.raises(AnswerInvalid, match="cents: Input should be a valid integer") as wrong:
        await client.wait(request, timeout_s=PATIENCE_S)
    assert wrong.value.outcome.answer == {"order": {"number": 7}, "cents": "a lot"}
    with pytest.raises(AnswerInvalid):
        async for _ in client.follow(request):
            pass


async def test_other_ends_have_no_answer_of_any_type(billing: Stage) -> None:
    client = await billing.client()
    request = await client.submit("bill it", facts=ORDER | {"ask": True}, answer_type=Invoice)
    await client.cancel(request)
    outcome = await client.wait(request, timeout_s=PATIENCE_S)
    answer: Any = outcome.answer
    assert (outcome.status, answer) == ("cancelled", None)


async def test_a_client_is_found_as_commands_find_it(
    environment: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Client.from_env() as client:
        assert client.name == "c1"
        request = await client.submit("bill it", facts=ORDER)
        assert (await client.wait(request, timeout_s=PATIENCE_S)).answer["cents"] == 1299
    monkeypatch.delenv("MESH_CREDENTIALS")
    with pytest.raises(NoCredentials, match="MESH_CREDENTIALS"):
        await Client.from_env()


async def in_a_thread(program: Any) -> Any:
    """Run a program that is not async as a script's: the mesh of this test goes on meanwhile."""
    return await asyncio.to_thread(program)


async def test_a_script_needs_no_async(environment: Stage) -> None:
    def script() -> tuple[Any, ...]:
        with mesh.sync.Client.from_env() as client:
            request = client.submit("bill it", facts=ORDER | {"ask": True}, answer_type=Invoice)
            asked: list[Question] = []

            def answer(question: Question) -> int:
                asked.append(question)
                return 5

            outcome = client.wait(request, timeout_s=PATIENCE_S, on_question=answer)
            return client.name, asked[0].question, outcome.answer, client.latest(request)

    name, asked, answered, last = await in_a_thread(script)
    assert (name, asked, answered) == ("c1", "how much?", Invoice(order=Order(number=7), cents=5))
    assert isinstance(last, events.RequestCompleted)


async def test_a_script_follows_replies_and_cancels(environment: Stage) -> None:
    def script() -> list[str]:
        with mesh.sync.Client.from_env() as client:
            seen = []
            request = client.submit("bill it", facts=ORDER | {"ask": True})
            for item in client.follow(request):
                if not isinstance(item, AgentNote):
                    seen.append(type(item).__name__)
                if isinstance(item, Question):
                    client.reply(item, 5)
            stopped = client.submit("bill it", facts=ORDER | {"ask": True})
            for item in client.follow(stopped):
                if isinstance(item, Question):
                    break  # what is left early is closed
            client.cancel(stopped, "enough")
            seen.append(client.wait(stopped, timeout_s=PATIENCE_S).status)
            return seen

    assert await in_a_thread(script) == ["Question", "Outcome", "cancelled"]


async def test_a_notebook_may_use_it_though_a_loop_runs_in_its_thread(environment: Stage) -> None:
    async def cell() -> Any:
        with mesh.sync.Client.from_env() as client:  # holds up this loop, as a notebook's
            return client.wait(client.submit("bill it", facts=ORDER), timeout_s=PATIENCE_S).answer["cents"]

    assert await in_a_thread(lambda: asyncio.run(cell())) == 1299


async def test_its_errors_are_the_clients_own_and_it_leaves_no_thread(environment: Stage) -> None:
    def script() -> None:
        before = set(threading.enumerate())
        with pytest.raises(Unreachable):
            mesh.sync.Client.connect("nats://127.0.0.1:1", name="c1")
        with mesh.sync.Client.from_env() as client:
            request = client.submit("bill it", facts=ORDER | {"ask": True})
            with pytest.raises(TimeoutError):
                client.wait(request, timeout_s=0.01)
        client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            client.latest(request)
        assert set(threading.enumerate()) <= before

    await in_a_thread(script)
