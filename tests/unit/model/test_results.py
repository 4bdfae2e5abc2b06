"""What a model reads of a tool's result."""

import base64
import json
import os
from datetime import date

import pytest

from mesh.agent import tool
from mesh.model.loop import drive
from mesh.model.results import as_text
from mesh.testing import StrictModel, calls, says, turn

PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + os.urandom(100_000)).decode()
SHOWN = "[image/x-own, 297 bytes: not shown]"
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0" + os.urandom(1_000)).decode()


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("From eight to six.", "From eight to six."),
        ('She said "no".\nTwice.', 'She said "no".\nTwice.'),
        (42, "42"),
        (None, "null"),
        ({"on": date(2026, 1, 2)}, '{"on":"2026-01-02"}'),
        (["a", 1], '["a",1]'),
    ],
)
def test_a_text_goes_as_it_is_and_anything_else_as_json(result: object, text: str) -> None:
    assert as_text(result) == text


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (PICTURE, "[image/png, 100008 bytes: not shown]"),
        (f"data:image/svg+xml;base64,{PICTURE}", "[image/svg+xml, 100008 bytes: not shown]"),
        ({"shot": JPEG}, {"shot": "[image/jpeg, 1004 bytes: not shown]"}),
        (
            {"result": [{"type": "image", "data": "QUJD" * 99, "mimeType": "image/x-own"}]},
            {
                "result": [
                    {
                        "type": "image",
                        "data": "[image/x-own, 297 bytes: not shown]",
                        "mimeType": "image/x-own",
                    }
                ]
            },
        ),
        ({"resource": {"uri": "a", "mimeType": "application/pdf", "blob": PICTURE}}, None),
    ],
)
def test_a_picture_is_never_base64_in_a_prompt(result: object, shown: object) -> None:
    text = as_text(result)
    assert len(text) < 200
    assert shown is None or (text if isinstance(result, str) else json.loads(text)) == shown


@pytest.mark.parametrize(
    "text", ["word " * 99, "/9j/ is how it begins, " * 99, "A" * 999, "data:," + "x" * 999]
)
def test_a_long_text_that_is_no_picture_is_shown_whole(text: str) -> None:
    assert as_text(text) == text
    assert json.loads(as_text({"data": text, "mimeType": "text/plain, they say"}))["mimeType"]


async def test_the_agents_own_code_gets_the_whole_of_it() -> None:
    @tool
    async def shoot() -> dict[str, str]:
        """Take a picture."""
        return {"shot": PICTURE}

    model = StrictModel(calls(("shoot", {})), says("taken"))
    given = turn(agent="a")
    await drive(given, model, instructions="Shoot.", tools=[shoot])
    assert "not shown" in str(model.prompts[1].transcript)
    assert (await turn(agent="a").call(shoot))["shot"] == PICTURE
