"""What a server answers to a hand-over of accounts: all but a plain yes is an error with a sentence."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest

from mesh.bus.accounts import UPDATE
from mesh.fleet import handover
from mesh.fleet.handover import HandoverFailed, hand_over
from tests.deploy.place import Place


def answering(monkeypatch: pytest.MonkeyPatch, held: bytes, outcome: bytes) -> None:
    """Let whoever hands over meet a server that answers so, asked for a claim and given one."""

    class Answering:
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def request(self, subject: str, data: bytes = b"") -> SimpleNamespace:
            return SimpleNamespace(data=outcome if subject == UPDATE else held)

    async def reached(url: str, **_: object) -> Answering:
        return Answering()

    monkeypatch.setattr(handover, "connect", reached)


UNREADABLE = "its answer cannot be read"
FULL = json.dumps({"error": {"code": 500, "description": "the disk is full"}}).encode()


@pytest.mark.parametrize(
    ("held", "outcome", "why"),
    [
        (b"no claim", b"", f"asked for its claim of the account .*{UNREADABLE}: no claim"),
        (b"a.eyJpYXQiOiJub3cifQ.c", b"", UNREADABLE),
        (b"\xff\xfe.\x80", b"", UNREADABLE),
        (b"", b"", f"given the claim of the account .*{UNREADABLE}"),
        (b"", b"<html>", UNREADABLE),
        (b"", b"\xff", UNREADABLE),
        (b"", b"[]", UNREADABLE),
        (b"", b'{"data": {"code": "200"}}', UNREADABLE),
        (b"", b'{"data": {"code": 201}}', "no reason given"),
        (b"", FULL, "the disk is full"),
    ],
)
async def test_an_answer_that_is_no_yes_has_a_sentence_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bytes, outcome: bytes, why: str
) -> None:
    answering(monkeypatch, held, outcome)
    with pytest.raises(HandoverFailed, match=why) as failed:
        await hand_over("nats://elsewhere:1", Place(tmp_path, "jwt").out)
    assert failed.value.code == "setup.handover"
