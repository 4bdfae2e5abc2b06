"""The accounts of a mesh as claims: they grant what the table of roles grants, no more and no less."""

import itertools
import re

import pytest

from mesh.bus.accounts import (
    HANDOVER,
    SYSTEM,
    AccountKeys,
    account_claims,
    account_of,
    closed_account,
    core_exports,
    revoked_in,
    with_revoked,
)
from mesh.bus.roles import CORE, Role, calls, grants, members, names
from mesh.bus.streams import offers_to
from tests.servers import FLEET

KEYS = AccountKeys(
    {account: f"A-{account}" for account in (CORE, SYSTEM, *names(FLEET))},
    {name: f"S-{name}" for name in (HANDOVER, *names(FLEET))},
)
CLAIMS = account_claims(FLEET, KEYS)
EVERYBODY = tuple(members(FLEET))


def covers(wide: str, narrow: str) -> bool:
    """Return True if a subject takes everything that another one takes."""
    pattern = re.escape(wide).replace(r"\*", r"[^.>]+")
    pattern = pattern[:-1] + ".+" if wide.endswith(">") else pattern
    return re.fullmatch(pattern, narrow) is not None


@pytest.mark.parametrize(("role", "name"), EVERYBODY)
def test_each_member_has_the_permissions_of_the_table(role: Role, name: str) -> None:
    granted = grants(role, name, offers_to(FLEET, name), partitions=FLEET.partitions)
    scopes = {scope["key"]: scope["template"] for scope in CLAIMS[granted.account]["signing_keys"]}
    own = scopes[f"S-{name}"]
    assert (own["pub"].get("allow"), own["sub"].get("allow")) == (granted.publish, granted.subscribe)
    assert scopes.keys() == ({"S-admin", "S-guard"} if granted.account == CORE else {f"S-{name}"})
    assert account_of(role, name) == granted.account


@pytest.mark.parametrize(("role", "name"), [each for each in EVERYBODY if each[1] not in ("admin", "guard")])
def test_an_import_reaches_what_the_member_may_call_and_hear(role: Role, name: str) -> None:
    imports = CLAIMS[name]["imports"]
    called = [each["local_subject"] for each in imports if each["type"] == "service"]
    assert called == [each.subject for each in calls(role, name, offers_to(FLEET, name))]
    assert {each["account"] for each in imports} == {f"A-{CORE}"}
    granted = grants(role, name, offers_to(FLEET, name))
    heard = [each["subject"] for each in imports if each["type"] == "stream"]
    assert set(heard) <= set(granted.subscribe or ())


def test_every_import_finds_its_export_in_the_same_way_of_answering() -> None:
    for name, claim in CLAIMS.items():
        for each in claim.get("imports", ()):
            account = each["account"].removeprefix("A-")
            exports = [
                export
                for export in CLAIMS[account]["exports"]
                if export["type"] == each["type"] and covers(export["subject"], each["subject"])
            ]
            assert exports, (name, each)
            ways = {(each.get("response_type"), each.get("response_threshold")) for each in exports}
            assert len(ways) == 1, (name, exports)


def test_no_export_covers_another_which_a_server_refuses() -> None:
    for account, claim in CLAIMS.items():
        exports = claim.get("exports", ())
        for one, other in itertools.permutations(exports, 2):
            if one["type"] == other["type"] == "service":
                assert not covers(one["subject"], other["subject"]), (account, one, other)


def test_another_member_changes_nothing_of_the_exports_of_core() -> None:
    assert CLAIMS[CORE]["exports"] == core_exports()
    assert not re.search(r"\b(a|c1|op)\b", " ".join(each["subject"] for each in core_exports()))


def test_a_revocation_is_kept_and_a_closed_account_lets_nobody_in() -> None:
    first = with_revoked({"x": 1}, {}, "U1")
    second = with_revoked({"x": 2}, revoked_in(first), "U2")
    assert second["revocations"].keys() == {"U1", "U2"}
    assert with_revoked({"x": 3}, {}) == {"x": 3}
    closed = closed_account(revoked_in(second))
    assert closed["revocations"].keys() == {"U1", "U2", "*"}
    assert not {"imports", "exports", "signing_keys"} & closed.keys()
    assert revoked_in(closed).keys() == {"U1", "U2"}
