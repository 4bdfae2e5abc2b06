"""`mesh agent prompt`: what is printed is what the vendor got, to the letter; printing it does nothing."""

import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mesh.cli.exits import Exit
from mesh.client import Outcome
from mesh.client.follow import AgentNote
from mesh.model import ROUTING, WORK
from mesh.model import choice as driven
from protocol.domain.ledger import Ledger
from protocol.wire.events import MoveRefused, RequestCompleted, TurnFailed
from tests.docs.pages import DOCS, commands
from tests.guard.stage import Stage
from tests.live import prompted
from tests.scripted_claude import ask_at
from tests.servers import PATIENCE_S
from tests.system.office import Office
from tests.vendors.claude import StubClaude
from tests.vendors.openai import StubOpenAI
from tests.vendors.stand_in import calls, fails, says

TOO_LARGE = {"key": "all", "value": "x" * 70_000}
SCRIPT = [
    calls(("find", {"who": "Ada"}), text="I look."),
    calls(("transfer_to_b", {"summary": "take her", "facts": [TOO_LARGE]})),
    says("She is in the attic."),
]
MODULE = ("--module", "tests.live.prompted:agent")


@pytest_asyncio.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StubClaude]:
    async with StubClaude(SCRIPT) as stub:
        ask_at(stub.url, monkeypatch)
        yield stub
        await driven.close_models()


@pytest.fixture
def office(stage: Stage, tmp_path: Path) -> Office:
    return Office(stage, tmp_path)


async def asked(stage: Stage) -> str:
    """Let the agent answer a request in two rounds; return its id."""
    await stage.runtime(prompted.agent)
    client = await stage.client()
    request = await client.submit("Where is Ada?")
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "She is in the attic."
    return request


def body(vendor: StubClaude, number: int) -> dict[str, Any]:
    """Return what the vendor got; the SDK itself adds that it wants a stream."""
    return {name: value for name, value in vendor.asked[number].body.items() if name != "stream"}


async def shown(office: Office, request: str, *more: object, status: int = Exit.DONE) -> Any:
    done = await office.mesh("agent", "prompt", "a", "--request", request, "--json", *more, who="audit")
    assert done.status == status, done
    return done.json


async def test_it_is_what_the_vendor_got_and_nothing_is_done_again(
    stage: Stage, office: Office, vendor: StubClaude
) -> None:
    request = await asked(stage)
    ran, steps = list(prompted.ran), await stage.last_seq("STEPS")
    for number in range(3):
        found = await shown(office, request, *MODULE, "--call", number + 1)
        assert found["sent"] == body(vendor, number)
        assert (found["exact"], found["differs"], found["calls"]) == (True, [], 3)
    assert found["sent"]["max_tokens"] == 777
    assert found["agent_version"] == {"then": "1", "here": "1"}
    assert found["prompt_version"] == {"then": "7", "here": "7"}
    assert (len(vendor.asked), prompted.ran, await stage.last_seq("STEPS")) == (3, ran, steps)


async def test_the_events_name_prompt_and_model(stage: Stage, vendor: StubClaude) -> None:
    log = await stage.log(await asked(stage))
    ledger, reports = Ledger(), []
    for event in log:
        ledger.apply(event)
        if isinstance(event, MoveRefused | RequestCompleted):
            reports.append(ledger.report_of(event))
    assert [report.prompt for report in reports] == ["7", "7"]
    assert [report.usage.models[ROUTING].calls for report in reports] == [2, 3]


async def test_a_move_is_named_by_its_event(stage: Stage, office: Office, vendor: StubClaude) -> None:
    request = await asked(stage)
    refused = next(event.n for event in await stage.log(request) if isinstance(event, MoveRefused))
    found = await shown(office, request, *MODULE, "--move", refused)
    assert (found["round"], found["call"], found["calls"]) == (0, 2, 2)
    assert found["sent"] == body(vendor, 1)
    done = await office.mesh("agent", "prompt", "a", "--request", request, *MODULE, "--move", 0, who="audit")
    assert done.status == Exit.USAGE
    assert f"those are {refused}, " in done.err


async def test_the_commands_of_the_page_do_what_they_are_given_for(
    stage: Stage, office: Office, vendor: StubClaude
) -> None:
    request = await asked(stage)
    refused = next(event.n for event in await stage.log(request) if isinstance(event, MoveRefused))
    typed = [command for command, _ in commands((DOCS / "models.md").read_text())]
    assert len(typed) == 3
    for command in typed:
        line = command.replace(" triage ", " a ").replace(" ID", f" {request}")
        _, *words = shlex.split(line.replace("--move 3", f"--move {refused}"), comments=True)
        done = await office.mesh(*words, *MODULE, who="audit")
        assert done.status == Exit.DONE, done
        assert "You find people" in done.out


async def test_people_get_the_words_as_they_were(stage: Stage, office: Office, vendor: StubClaude) -> None:
    request = await asked(stage)
    done = await office.mesh("agent", "prompt", "a", "--request", request, *MODULE, who="audit")
    assert done.status == Exit.DONE, done
    assert "exact: this is what was sent, to the letter" in done.out
    assert "You find people.\nBe brief.\n" in done.out
    assert 'text: "Where is Ada?"' in done.out
    assert '"content":"Ada is in the attic"' in done.out
    assert "prompt version 7, agent version 1" in done.out


async def test_a_turn_on_openais_api_is_followed_answered_and_shown_to_the_letter(
    stage: Stage, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [calls(("find", {"who": "Ada"}), text="I look for her."), says("She is in the attic.")]
    async with StubOpenAI(script) as vendor:
        told = {"OPENAI_API_KEY": "stub", "OPENAI_BASE_URL": vendor.url, driven.VARIABLE: "openai"}
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        await stage.runtime(prompted.elsewhere)
        client = await stage.client()
        request, heard = client.new_id(), []
        async with client.follow(request) as feed:
            await client.submit("Where is Ada?", request=request)
            async for item in feed:
                if isinstance(item, AgentNote):
                    heard.append(item.note.text)
                if isinstance(item, Outcome):
                    assert item.answer == "She is in the attic."
        assert "I look for her." in "".join(heard)
        found = await shown(office, request, "--module", "tests.live.prompted:elsewhere")
        assert (found["sent"], found["exact"]) == (vendor.asked[-1].body, True)
        person = ("agent", "prompt", "a", "--request", request, "--module", "tests.live.prompted:elsewhere")
        done = await office.mesh(*person, who="audit")
        for line in (
            "=== system\nYou find people.",
            "=== tool\n",
            '"name":"find"',
            "=== assistant\nI look for",
        ):
            assert line in done.out
        (ended,) = [event for event in await stage.log(request) if isinstance(event, RequestCompleted)]
        ledger = Ledger()
        for event in await stage.log(request):
            ledger.apply(event)
        used = ledger.report_of(ended).usage
        assert (used.tokens, used.models["gpt-6-luna"].calls) == (2 * 120, 2)
        assert vendor.refused == []
        await driven.close_models()


async def test_the_vendors_words_for_a_refusal_are_what_why_says(
    stage: Stage, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "prompt is too long: 200001 tokens > 200000"
    async with StubClaude(lambda body: fails(400, said)) as vendor:
        ask_at(vendor.url, monkeypatch)
        await stage.runtime(prompted.agent)
        client = await stage.client()
        request = await client.submit("Where is Ada?")
        await stage.reached(request, TurnFailed)
        done = await office.mesh("why", request, who="audit")
        await driven.close_models()
    assert said in done.out


async def test_changed_code_is_found_out_and_said(stage: Stage, office: Office, vendor: StubClaude) -> None:
    request = await asked(stage)
    found = await shown(office, request, "--module", "tests.live.prompted:changed", status=Exit.FAILED)
    assert not found["exact"]
    assert found["call"] == 1, "what follows a difference is nobody's prompt"
    said = "\n".join(found["differs"])
    assert "version 1 of the agent began the round, this is 2" in said
    assert "version 7 of its prompt was used, this is 8" in said


async def test_another_model_than_was_asked_is_not_to_the_letter(
    stage: Stage, office: Office, vendor: StubClaude
) -> None:
    request = await asked(stage)
    repinned = ("--module", "tests.live.prompted:repinned")
    found = await shown(office, request, *repinned, status=Exit.FAILED)
    assert (found["exact"], found["model"]) == (False, ROUTING)
    assert found["differs"] == [f"{ROUTING} was asked, and the agent is pinned to {WORK} now"]
    done = await office.mesh("agent", "prompt", "a", "--request", request, *repinned, who="audit")
    assert done.status == Exit.FAILED
    assert f"NOT KNOWN TO BE WHAT WAS SENT: {found['differs'][0]}" in done.out
    assert "to the letter" not in done.out


async def test_a_round_that_runs_is_shown_as_far_as_its_journal_goes(
    stage: Stage, office: Office, vendor: StubClaude, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor._script = iter([SCRIPT[0], fails(529, retry_after_s=3600)])
    await stage.runtime(prompted.agent)
    request = await (await stage.client()).submit("Where is Ada?")
    await stage.reaches(request, "turn.failed")
    found = await shown(office, request, *MODULE, "--call", 1)
    assert found["sent"] == body(vendor, 0)
    last = await shown(office, request, *MODULE, status=Exit.FAILED)
    assert (last["call"], last["exact"]) == (2, False)
    assert "was never recorded" in last["differs"][-1]
    assert last["sent"] == body(vendor, 1), "it was sent all the same; only its reply is not there"


@pytest.mark.parametrize(
    ("arguments", "says_so"),
    [
        pytest.param((), "use --module or --fleet", id="no-code"),
        pytest.param(("--module", "tests.live.prompted:other"), "is the agent 'b', not 'a'", id="anothers"),
        pytest.param((*MODULE, "--call", 9), "calls 1 to 3", id="no-such-call"),
        pytest.param(("--module", "tests.live.prompted:nobody"), "has no 'nobody'", id="no-such-code"),
    ],
)
async def test_what_cannot_be_shown_is_a_matter_of_usage(
    arguments: tuple[object, ...], says_so: str, stage: Stage, office: Office, vendor: StubClaude
) -> None:
    request = await asked(stage)
    done = await office.mesh("agent", "prompt", "a", "--request", request, *arguments, who="audit")
    assert done.status == Exit.USAGE
    assert says_so in done.err


async def test_an_agent_that_was_given_nothing_was_sent_nothing(
    stage: Stage, office: Office, vendor: StubClaude
) -> None:
    request = await asked(stage)
    done = await office.mesh(
        "agent", "prompt", "c", "--request", request, "--module", "tests.live.prompted:idle", who="audit"
    )
    assert done.status == Exit.FAILED
    assert "c was given nothing" in done.err
