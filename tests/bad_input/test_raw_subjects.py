"""A subject is bytes: the server lets more through than a client library would write.

Whatever is in one, the guard reads it as one message of one sender, and goes on.
"""

import pytest

from tests.bad_input.scene import Scene
from tests.servers import until

TOKENS = {
    "no-utf-8": b"\xff\xfe",
    "half-a-character": b"\xed\xa0\x80",
    "vertical-tab": b"x\x0by",
    "form-feed": b"x\x0cy",
    "a-number-after-a-tab": b"x\x0b1",
    "two-numbers": b"x\x0b1\x0b2",
    "separators": b"a\x1cb\x1db\x1e\x1f",
    "nul": b"a\x00b",
    "no-break-space": "a\u00a0b\u2028c".encode(),
    "long": b"L" * 3_900,
}


@pytest.mark.parametrize("kind", ["prop", "ctl"])
@pytest.mark.parametrize(
    "token",
    [pytest.param(token, id=name) for name, token in TOKENS.items()],
)
async def test_whatever_bytes_a_subject_holds(scene: Scene, token: bytes, kind: str) -> None:
    client = await scene.bus("c1")
    answers: list[bytes] = []
    inbox = await client.subscribe(client.new_inbox(), lambda message: answers.append(message.data))
    head = b"PUB mesh.%s.c1.%s %s 2\r\n" % (kind.encode(), token, inbox.subject.encode())
    client._wire.write(head + b"{}\r\n")
    await until(lambda: bool(answers))
    assert b'"seq"' in answers[0], "the server stored it"
    await scene.drained()
    (letter,) = await scene.dead_letters()
    assert letter.original == b"{}"
    assert letter.sender == "c1"
    await scene.still_works()


async def test_a_subject_that_the_server_itself_loses_harms_nobody(scene: Scene) -> None:
    """nats-server 2.15 stores a subject with 0x7f in it, and never delivers it to a consumer."""
    client = await scene.bus("c1")
    before = await scene.last_seq("PROP")
    client._wire.write(b"PUB mesh.prop.c1.\x7f 2\r\n{}\r\n")
    await client.flush()
    await scene.still_works()
    assert await scene.last_seq("PROP") > before
