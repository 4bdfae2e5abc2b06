"""A key of the wrong role: the command says whose it needs; a refusal of another cause stays whole."""

import pytest

from mesh.cli.exits import Exit
from tests.system.office import Office

FLEET = """
name = "stage"
entry = "a"
[agents.a]
[clients.c1]
[operators.op]
[viewers.audit]
"""
READERS = "this needs a key with the role viewer or operator (--as, MESH_CREDENTIALS)"
SENDERS = "this needs a key with the role client or operator (--as, MESH_CREDENTIALS)"


@pytest.mark.parametrize(
    ("arguments", "who", "said"),
    [
        pytest.param(["cost"], "c1", f"c1 has the role client; {READERS}", id="cost-as-a-client"),
        pytest.param(["request", "ls"], "a", f"a has the role agent; {READERS}", id="ls-as-an-agent"),
        pytest.param(["send", "x"], "audit", f"audit has the role viewer; {SENDERS}", id="send-as-a-viewer"),
        pytest.param(
            ["freeze"],
            "audit",
            "audit has the role viewer; this needs a key with the role operator (--as, MESH_CREDENTIALS)",
            id="freeze-as-a-viewer",
        ),
    ],
)
async def test_a_key_of_the_wrong_role_is_named_with_the_one_that_it_takes(
    office: Office, arguments: list[str], who: str, said: str
) -> None:
    (office.folder.path / "mesh.toml").write_text(FLEET)
    done = await office.process(*arguments, who=who)
    assert (done.status, done.err) == (Exit.USAGE, f"mesh: {said} [cli.usage]\n")


async def test_where_nothing_tells_the_role_the_refusal_is_told_too(office: Office) -> None:
    done = await office.mesh("cost", who="c1")
    denied = "not allowed to publish to $JS.API.DIRECT.GET.LOG"
    assert done.status == Exit.USAGE
    assert done.err == f"mesh: the key of c1 will not do; {READERS}: {denied} [cli.usage]\n"


async def test_a_refusal_that_no_other_key_explains_stays_as_it_is(office: Office) -> None:
    """By the file here c1 may look: that the bus says no has another cause, and its subject is what tells."""
    (office.folder.path / "mesh.toml").write_text(
        FLEET.replace("[clients.c1]", "[clients.x]").replace("[viewers.audit]", "[viewers.c1]")
    )
    done = await office.mesh("cost", who="c1")
    denied = "not allowed to publish to $JS.API.DIRECT.GET.LOG"
    assert (done.status, done.err) == (Exit.FAILED, f"mesh: {denied} [bus.denied]\n")


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
async def test_a_doctor_who_cannot_look_is_not_content(office: Office, options: list[str]) -> None:
    done = await office.mesh("doctor", *options, who="c1")
    assert done.status == Exit.USAGE, done
    assert done.err == (
        "mesh: the key of c1 will not do; this needs a key with the role operator or viewer "
        "(--as, MESH_CREDENTIALS) [cli.usage]\n"
    )
    assert "dead letters" in done.out
