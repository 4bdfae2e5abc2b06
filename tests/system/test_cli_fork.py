"""`mesh fork`: a request that goes on from an old one, over a real bus."""

from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace

from mesh.agent import Agent, Move, ToolRefused, Turn, agent, tool
from mesh.agent._instance import card_of
from mesh.bus.roles import GUARD_ANSWERS
from mesh.bus.streams import steps_of
from mesh.cli.exits import Exit
from protocol.wire import codec, events, subjects
from tests.certain import is_
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S
from tests.system.office import Office
from tests.system.terminal import Finished


class Shop(NamedTuple):
    """A request that two agents played, and what their tools did since."""

    office: Office
    stage: Stage
    request: str
    did: list[str]
    agents: dict[str, Agent]

    async def fork(self, *options: object, at: int = 1) -> Finished:
        return await self.office.mesh("fork", self.request, "--at", at, *options)

    async def forked(self, *options: object, at: int = 1) -> tuple[str, Any]:
        """Fork the request, and return the new one with its answer."""
        done = await self.fork(*options, at=at)
        assert done.status == Exit.DONE, done
        new = done.out.split()[-1]
        await self.stage.reaches(new, "request.completed")
        return new, is_((await self.stage.log(new))[-1], events.RequestCompleted).answer


@pytest_asyncio.fixture
async def shop(own_office: Office, own_stage: Stage) -> Shop:
    did: list[str] = []

    @tool(effect="idempotent")
    async def pay(cents: int, idempotency_key: str = "") -> str:
        """Pay."""
        did.append(f"pay {cents}")
        return f"receipt {len(did)}"

    @agent(name="a", version="1")
    async def first(turn: Turn) -> Move:
        return turn.transfer("b", summary="Pay it", facts={"cents": 4200})

    @agent(name="b", version="1", tools=[pay])
    async def second(turn: Turn) -> Move:
        try:
            return turn.complete(await turn.call(pay, cents=turn.facts["cents"]))
        except ToolRefused as no:
            return turn.complete(no.reason)

    for each in (first, second):
        await own_stage.runtime(each)
    client = await own_stage.client()
    request = await client.submit("Refund me")
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "receipt 1"
    did.clear()
    return Shop(own_office, own_stage, request, did, {"a": first, "b": second})


async def test_a_fork_answers_from_the_record_and_is_linked_both_ways(shop: Shop) -> None:
    new, answer = await shop.forked()
    assert (answer, shop.did) == ("receipt 1", [])
    opened = is_((await shop.stage.log(new))[0], events.RequestOpened)
    assert (opened.client, opened.to, opened.work.handoff.summary) == ("op", "b", "Pay it")
    fork = opened.forked_from
    assert fork is not None
    bodies = await shop.stage.bodies(shop.request)
    assert (fork.request, fork.n, fork.digest) == (shop.request, 1, codec.body_digest(bodies[1]))

    story = await shop.office.mesh("request", "show", new, who="audit")
    assert f"forked from {shop.request} after event 1" in story.out
    old = await shop.office.mesh("request", "show", shop.request, who="audit")
    assert f"forked as {new}" in old.out
    told = (await shop.office.mesh("request", "show", new, "--json", who="audit")).json
    assert told["forked_from"] == {"request": shop.request, "n": 1, "digest": fork.digest}
    told = (await shop.office.mesh("request", "show", shop.request, "--json", who="audit")).json
    assert told["forks"] == [new]

    whole = await shop.office.mesh("diff", shop.request, new, who="audit")
    assert whole.status == Exit.FAILED
    assert f"mesh diff {shop.request}@1.. {new}@0.." in whole.err
    rest = await shop.office.mesh("diff", f"{shop.request}@1..", f"{new}@0..", who="audit")
    assert (rest.status, rest.err) == (Exit.DONE, ""), rest


async def test_another_fact_is_another_effect_and_only_run_runs_it(shop: Shop) -> None:
    _, refused = await shop.forked("--set", "cents:=100")
    _, none = await shop.forked("--effects", "refuse")
    assert (refused, none, shop.did) == ("fork.not_recorded", "fork.effects_refused", [])

    asked = await shop.fork("--set", "cents:=100", "--effects", "run")
    assert (asked.status, shop.did) == (Exit.USAGE, [])
    assert "pay" in asked.err
    assert '{"cents":4200}' in asked.err
    said_no = await shop.office.typed("n\n", "fork", shop.request, "--at", 1, "--effects", "run")
    assert (said_no.status, shop.did) == (Exit.FAILED, [])

    _, ran = await shop.forked("--set", "cents:=100", "--effects", "run", "--yes")
    assert (ran, shop.did) == ("receipt 1", ["pay 100"])


async def test_it_is_refused_where_it_could_not_begin_or_keep_its_word(shop: Shop) -> None:
    missing = await shop.fork(at=99)
    assert (missing.status, "the last one is" in missing.err) == (Exit.FAILED, True)
    over = await shop.fork(at=len(await shop.stage.bodies(shop.request)) - 1)
    assert "an earlier one" in over.err
    foreign = await shop.office.mesh("fork", shop.request, "--at", 1, who="c1")
    assert (foreign.status, "operator" in foreign.err) == (Exit.USAGE, True)

    assert (await shop.office.mesh("freeze", "--reason", "drill")).status == Exit.DONE
    frozen = await shop.fork()
    assert "mesh thaw" in frozen.err
    assert (await shop.office.mesh("thaw")).status == Exit.DONE

    admin = await shop.stage.bus("admin")
    await admin.api(f"STREAM.PURGE.{steps_of('b')}", {"filter": subjects.journals(shop.request, "b")})
    trimmed = await shop.fork()
    assert "0 of 1 steps" in trimmed.err
    assert "--effects refuse" in trimmed.err
    assert (await shop.fork("--effects", "refuse")).status == Exit.DONE


async def test_an_agent_whose_card_does_not_say_forks_might_run_effects(shop: Shop) -> None:
    bus = await shop.stage.bus("b", "card")
    card = replace(card_of(shop.agents["b"], (), "before"), forks=False)
    await bus.publish_durable(subjects.card("b"), codec.encode(card))
    refused = await shop.fork()
    assert (refused.status, "b does not say in its card" in refused.err) == (Exit.FAILED, True)
    assert (await shop.forked("--effects", "run", "--yes"))[1] == "receipt 1"


async def test_a_guard_of_before_would_open_a_request_that_is_no_fork(shop: Shop) -> None:
    bus = await shop.stage.bus("guard", "older")
    said = msgspec.json.encode({"id": "older", "endpoints": [], "metadata": {"role": "guard"}})
    heard = await bus.subscribe(GUARD_ANSWERS[-1], lambda asked: bus.send(asked.reply, said))
    refused = await shop.fork()
    assert (refused.status, "guard older is of a release before" in refused.err) == (Exit.FAILED, True)
    await heard.close()
    assert (await shop.fork()).status == Exit.DONE


@pytest.mark.parametrize("n", [0, 1])
async def test_programs_read_what_became_of_it(shop: Shop, n: int) -> None:
    done = await shop.fork("--json", at=n)
    assert "models are asked" in done.err
    assert "goes on beside it" not in done.err
    told = done.json
    assert told["forked_from"] == {"request": shop.request, "n": n}
    assert told["effects"] == []
    await shop.stage.reaches(told["request"], "request.completed")
    assert shop.did == []
