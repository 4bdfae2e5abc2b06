"""Files for a model: which artifacts it is shown, how each vendor gets them, and what is recorded of them."""

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import pytest

from mesh.agent import Artifact, Move, Turn, agent
from mesh.agent._steps import digest_of
from mesh.errors import ArtifactMissing
from mesh.local.in_memory import TemporaryStore
from mesh.model import ClaudeAgent, Instructions, Prompt
from mesh.model.files import MOST_BYTES, MOST_FILES, SHOWN, files_among, media_types
from mesh.model.port import PromptFile, PromptWithFiles
from mesh.replay.code import Replayer
from mesh.testing import (
    FleetHarness,
    InMemoryGuard,
    MemorySteps,
    StrictModel,
    calls,
    driven_by,
    fleet_of,
    says,
    turn,
)
from tests.unit.model.test_openai_model import openai
from tests.unit.model.test_openai_responses import responses
from tests.unit.model.vendor import PROMPT, claude
from tests.vendors.stand_in import says as answers

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 200
PDF = b"%PDF-1.7\n" + b"\x00" * 200
WORDS = Instructions("1", "Be brief.")
SEES = ("image/*", "application/pdf")


async def saved(store: TemporaryStore, name: str, data: bytes, media_type: str, **more: Any) -> Artifact:
    return await store.save(name, data, media_type=media_type, **more)


async def scan_and_bill(store: TemporaryStore) -> tuple[Artifact, Artifact]:
    scan = await saved(store, "scan", PNG, "image/png")
    return scan, await saved(store, "bill", PDF, "application/pdf")


def seen(prompt: Prompt) -> list[PromptFile]:
    return list(prompt.files) if isinstance(prompt, PromptWithFiles) else []


def clerk(**more: Any) -> ClaudeAgent:
    return ClaudeAgent("clerk", instructions=WORDS, **more)


# --- which ones ---------------------------------------------------------------------------------------


async def test_an_agent_that_asks_for_it_is_shown_pictures_and_documents() -> None:
    store = TemporaryStore()
    scan, bill = await scan_and_bill(store)
    with driven_by(StrictModel(says("Seen."))) as model:
        await clerk(sees=SEES)(turn(agent="clerk", artifacts=[scan, bill], store=store))
    assert [(each.artifact, each.data) for each in seen(model.prompts[0])] == [(scan, PNG), (bill, PDF)]


@pytest.mark.parametrize(
    ("sees", "names"), [((), []), (["image/png"], ["scan"]), (["application/pdf"], ["bill"])], ids=str
)
async def test_no_other_agent_is(sees: Any, names: list[str]) -> None:
    store = TemporaryStore()
    artifacts = await scan_and_bill(store)
    with driven_by(StrictModel(says("Seen."))) as model:
        await clerk(sees=sees)(turn(agent="clerk", artifacts=artifacts, store=store))
    assert [each.artifact.name for each in seen(model.prompts[0])] == names
    assert type(model.prompts[0]) is (PromptWithFiles if names else Prompt)
    assert "- scan: mesh-artifact:" in model.prompts[0].brief


def picture(**more: Any) -> Artifact:
    return Artifact(
        **{"name": "x", "uri": "mesh-artifact:sha256/0", "media_type": "image/png", "size": 9, **more}
    )


@pytest.mark.parametrize(
    "artifact",
    [
        picture(size=None),
        picture(size=0),
        picture(size=MOST_BYTES + 1),
        picture(uri="s3://elsewhere/x.png"),
        picture(media_type="image/svg+xml"),
        picture(media_type=""),
    ],
    ids=["no-size", "empty", "too-large", "elsewhere", "no-such-type", "no-type"],
)
def test_what_cannot_be_shown_is_only_named(artifact: Artifact) -> None:
    assert files_among([artifact], media_types(SEES)) == ()


def test_there_are_so_many_at_most() -> None:
    found = files_among([picture(name=f"p{n}") for n in range(MOST_FILES + 5)], media_types(SEES))
    assert len(found) == MOST_FILES


def test_media_types_are_those_that_vendors_take() -> None:
    assert media_types(SEES) == set(SHOWN)
    with pytest.raises(ValueError, match="no model is shown 'video/mp4': there are image/"):
        clerk(sees=["video/mp4"])
    with pytest.raises(ValueError, match="`sees` is a list of media types"):
        clerk(sees="image/png")


async def test_bytes_of_another_type_are_told_of_and_sent_to_no_vendor() -> None:
    store = TemporaryStore()
    scan = await saved(store, "scan", b"<html>no picture</html>", "image/png")
    async with claude(answers("I see none.")) as (stub, model):
        with driven_by(model):
            await clerk(sees=SEES)(turn(agent="clerk", artifacts=[scan], store=store))
    *_, label = stub.asked[0].body["messages"][0]["content"]
    assert label["text"] == "scan (image/png): not shown, its bytes are of another type"


async def test_an_artifact_that_is_gone_fails_the_round_with_its_own_error() -> None:
    scan = picture(uri=f"mesh-artifact:sha256/{'0' * 64}", digest=f"sha256:{'0' * 64}")
    with driven_by(StrictModel()), pytest.raises(ArtifactMissing):
        await clerk(sees=SEES)(turn(agent="clerk", artifacts=[scan], store=TemporaryStore()))


# --- how vendors get them -----------------------------------------------------------------------------

B64_PNG, B64_PDF = b64encode(PNG).decode(), b64encode(PDF).decode()
LABELS = ("scan (image/png)", "bill (application/pdf)")


def of_claude(body: Mapping[str, Any]) -> Any:
    def block(kind: str, media_type: str, data: str) -> dict[str, Any]:
        return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}}

    content = body["messages"][0]["content"]
    assert content[-1].pop("cache_control") == {"type": "ephemeral"}
    first, second = ({"type": "text", "text": label} for label in LABELS)
    expected = [first, block("image", "image/png", B64_PNG), second]
    return content[1:], [*expected, block("document", "application/pdf", B64_PDF)]


def of_openai(body: Mapping[str, Any]) -> Any:
    first, second = ({"type": "text", "text": label} for label in LABELS)
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{B64_PNG}"}}
    named = {"filename": "bill", "file_data": f"data:application/pdf;base64,{B64_PDF}"}
    expected = [first, image, second, {"type": "file", "file": named}]
    return body["messages"][1]["content"][1:], expected


def of_responses(body: Mapping[str, Any]) -> Any:
    first, second = ({"type": "input_text", "text": label} for label in LABELS)
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{B64_PNG}", "detail": "auto"}
    file = {"type": "input_file", "filename": "bill", "file_data": f"data:application/pdf;base64,{B64_PDF}"}
    return body["input"][0]["content"][1:], [first, image, second, file]


@pytest.mark.parametrize(
    ("vendor", "shown"),
    [(claude, of_claude), (openai, of_openai), (responses, of_responses)],
    ids=["claude", "openai", "responses"],
)
async def test_each_vendors_sdk_sends_them_behind_the_brief(vendor: Any, shown: Any) -> None:
    store = TemporaryStore()
    artifacts = await scan_and_bill(store)
    async with vendor(answers("Seen.")) as (stub, model):
        with driven_by(model):
            await clerk(sees=SEES)(turn(agent="clerk", artifacts=artifacts, store=store))
    found, expected = shown(stub.asked[0].body)
    assert found == expected


# --- what is recorded ---------------------------------------------------------------------------------


def test_a_prompt_without_files_has_the_digest_that_it_always_had() -> None:
    assert set(
        json.loads(json.dumps(PROMPT, default=lambda each: {n: getattr(each, n) for n in each.__slots__}))
    ) == {
        "agent",
        "instructions",
        "brief",
        "tools",
        "transcript",
    }
    other = PromptWithFiles(
        PROMPT.agent, PROMPT.instructions, PROMPT.brief, PROMPT.tools, (), (PromptFile(picture()),)
    )
    assert digest_of(other) != digest_of(PROMPT)


async def test_the_journal_has_no_bytes_and_a_round_that_runs_again_asks_and_loads_nothing() -> None:
    store, steps = TemporaryStore(), MemorySteps()
    artifacts = await scan_and_bill(store)
    with driven_by(StrictModel(says("Seen."))):
        await clerk(sees=SEES)(turn(agent="clerk", artifacts=artifacts, store=store, steps=steps))
    assert not any(B64_PNG[:40].encode() in body for body in steps.steps.values())
    with driven_by(StrictModel()):
        again = turn(agent="clerk", artifacts=artifacts, store=TemporaryStore(), steps=steps)
        move = await clerk(sees=SEES)(again)
    assert getattr(move, "answer", None) == "Seen."


async def test_a_picture_that_was_handed_over_is_seen_and_replayed_without_a_store() -> None:
    @agent(name="front")
    async def front(turn: Turn) -> Move:
        scan = await turn.save("scan", PNG, media_type="image/png")
        return turn.transfer("clerk", summary="read it", artifacts=[scan])

    guard = InMemoryGuard(fleet_of("front", "clerk"))
    with driven_by(StrictModel(calls(("nothing", {})), says("A cat."))) as model:
        walk = await FleetHarness(guard, {"front": front, "clerk": clerk(sees=SEES)}).go("What is it?")
    assert walk.answer == "A cat."
    assert [file.data for prompt in model.prompts for file in seen(prompt)] == [PNG, PNG]
    for sees, result in ((SEES, "same"), ((), "different")):
        replayer = Replayer({"clerk": clerk(sees=sees)}, walk.recording)
        (found,) = await replayer.replay(walk.guard.bodies)
        assert found.result == result, found
    assert found.difference is not None
    assert found.difference.kind == "prompt"
