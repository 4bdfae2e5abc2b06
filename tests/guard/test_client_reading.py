"""What a client may read of its own request holds no labelled fact, no grounds and no report."""

import msgspec

from mesh.bus.roles import API, GET
from protocol.wire.commands import ReplyToAsk, Report, Usage
from protocol.wire.events import RequestRefused
from protocol.wire.handoff import Constraints, Fact
from protocol.wire.ids import AgentName, RequestId
from protocol.wire.moves import Ask, Complete, Escalate, Fail, Move, Transfer
from protocol.wire.subjects import evt
from tests.docs.pages import DOCS, blocks
from tests.guard.stage import Stage
from tests.security.scenes import told
from tests.servers import PATIENCE_S

B = AgentName("b")
CARD = Fact(key="hush-key", value="hush-value", labels=("pii",))
FOUND = Fact(key="hush-found", value="hush-value", labels=("pii",))
REPORT = Report(
    usage=Usage(tokens=987_654), actions=("hush_action",), digest="hush-digest", prompt="hush-prompt"
)
SECRETS = (b"hush", b"987654", b"clearance", b"grounds", b"report", b"fleet")


async def read(stage: Stage, name: str, request: str, first: int) -> list[bytes]:
    """Return all that a name gets when it asks for everything of a request, by every way there is."""
    bus = await stage.bus(name, "attack")
    own = GET + "LOG." + evt("c1", RequestId(request))
    tries = [(own, b"")]
    tries += [(GET + f"LOG.mesh.evt.{to}.{request}", b"") for to in ("_", "*", "a", "b", "human")]
    for body in (
        {"seq": first, "batch": 1000, "next_by_subj": f"mesh.evt.*.{request}"},
        {"multi_last": [f"mesh.evt.*.{request}"]},
        {"last_by_subj": f"mesh.evt._.{request}"},
    ):
        asked = msgspec.json.encode(body)
        tries += [(GET + "LOG", asked), (own, asked)]
    for seq in range(first, await stage.last_seq("LOG") + 1):
        asked = msgspec.json.encode({"seq": seq})
        tries += [(subject, asked) for subject in (GET + "LOG", own, API + "STREAM.MSG.GET.LOG")]
    return [answer for subject, data in tries for answer in await told(bus, subject, data)]


async def test_an_answer_comes_with_the_headers_of_the_page(stage: Stage) -> None:
    page = (DOCS / "wire" / "client.md").read_text()
    (shown,) = (each.text for each in blocks(page) if each.kind == "headers")
    await stage.guard()
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello")
    await a.propose(request, await a.work(request), Complete(answer="here"))
    await client.wait(request, timeout_s=PATIENCE_S)
    got = await (await stage.bus("c1", "reader")).request(GET + "LOG." + evt("c1", RequestId(request)))
    lines = got.head.decode().split("\r\n")[1:]
    names = [line.partition(": ")[0] for line in shown.splitlines()]
    assert [line.partition(": ")[0] for line in lines if line] == names
    assert lines[0] == shown.splitlines()[0]


async def play(stage: Stage, last: Move) -> tuple[str, list[bytes]]:
    """Play a request that asks its client, and ends by `last`; return its id and what its client read."""
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    first = await stage.last_seq("LOG") + 1
    asked = Constraints(must_carry=("hush-key",))
    request = await client.submit("hello", facts=(CARD,), constraints=asked, policy="unescalated")
    await a.propose(request, await a.work(request), Transfer(to_agent=B, summary="please"), report=REPORT)
    question = Ask(to_agent=AgentName("c1"), question="which?")
    await b.propose(request, await b.work(request), question, report=REPORT)
    (*_, event) = await stage.reaches(request, "turn.suspended")
    got = await read(stage, "c1", request, first)
    await stage.control(request, ReplyToAsk(id="r1", turn=event.turn, round=0, value="this"), "c1")
    await b.propose(request, await b.work(request, round_=1), last, report=REPORT)
    await client.wait(request, timeout_s=PATIENCE_S)
    await stage.drained()
    got += await read(stage, "c1", request, first)
    seen = b"".join(await read(stage, "audit", request, first))
    assert all(secret in seen for secret in (b"hush-value", b"hush_action", b"clearance"))  # it lies there
    return request, got


async def test_a_client_reads_no_grounds_no_report_and_no_labelled_fact(stage: Stage) -> None:
    await stage.guard()
    endings: tuple[Move, ...] = (
        Complete(answer="done"),
        Fail(reason="not today"),
        Escalate(summary="hush-summary", facts=(FOUND,)),
    )
    for last in endings:
        request, got = await play(stage, last)
        assert sum(request.encode() in answer for answer in got) >= 2, "its own events it does read"
        found = {secret for secret in SECRETS for answer in got if secret in answer}
        assert found == set()


async def test_a_refused_submit_names_its_rule_and_nothing_it_rested_on(stage: Stage) -> None:
    await stage.guard()
    client = await stage.client()
    first = await stage.last_seq("LOG") + 1
    request = await client.submit("hello", intent="nobody-takes-it", to="nobody")
    assert isinstance((await client.wait(request, timeout_s=PATIENCE_S)).event, RequestRefused)
    got = await read(stage, "c1", request, first)
    assert any(b"known_agent" in answer for answer in got)
    assert {secret for secret in SECRETS for answer in got if secret in answer} <= {b"fleet"}
