"""Claims: their form, when a newer one is signed, and the file in which a user's lies."""

import base64
import json
from typing import Any

import msgspec
import nkeys
import pytest

from mesh.bus.claims import (
    Claim,
    ClaimKind,
    claim_and_seed,
    issue,
    new_issuer,
    read_claim,
    read_issuer,
    with_seed,
)
from mesh.bus.credentials import Signature, is_public_key, new_key, sign

NOW_S = 1_700_000_000


def part(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_a_claim_is_signed_by_its_issuer_over_header_and_content() -> None:
    operator, account = new_issuer(ClaimKind.OPERATOR), new_issuer(ClaimKind.ACCOUNT)
    claim = issue(operator, ClaimKind.ACCOUNT, account.public, "a", {"limits": {"conn": -1}}, now_s=NOW_S)
    header, body, signature = claim.split(".")
    assert json.loads(part(header)) == {"typ": "JWT", "alg": "ed25519-nkey"}
    told = json.loads(part(body))
    assert told.pop("jti")
    assert told == {
        "iss": operator.public,
        "sub": account.public,
        "name": "a",
        "iat": NOW_S,
        "nats": {"limits": {"conn": -1}, "type": "account", "version": 2},
    }
    pair = nkeys.from_seed(bytearray(operator.seed.encode()))
    assert pair.verify(f"{header}.{body}".encode(), part(signature))
    found = read_claim(claim)
    assert (found.name, found.issuer, found.subject) == ("a", operator.public, account.public)


def test_a_claim_that_says_the_same_is_not_signed_again_and_another_one_is_dated_later() -> None:
    operator, account = new_issuer(ClaimKind.OPERATOR), new_issuer(ClaimKind.ACCOUNT)

    def signed(content: dict[str, int], before: str, now_s: int) -> str:
        return issue(operator, ClaimKind.ACCOUNT, account.public, "a", content, now_s=now_s, before=before)

    first = issue(operator, ClaimKind.ACCOUNT, account.public, "a", {"x": 1}, now_s=NOW_S)
    assert signed({"x": 1}, first, NOW_S + 99) == first
    for now_s in (NOW_S, NOW_S - 3600):  # the same second, and a clock that was set back
        assert read_claim(signed({"x": 2}, first, now_s)).issued_at_s == NOW_S + 1
    assert read_claim(signed({"x": 2}, first, NOW_S + 99)).issued_at_s == NOW_S + 99


def test_claim_and_seed_lie_in_one_file_and_a_seed_alone_is_read_as_before() -> None:
    key, signer = new_key(), new_issuer(ClaimKind.ACCOUNT)
    claim = issue(signer, ClaimKind.USER, key.public, "app", {}, now_s=NOW_S)
    text = with_seed(claim, key.seed)
    assert claim_and_seed(text) == (claim, key.seed)
    assert claim_and_seed(f"{key.seed}\n") == ("", key.seed)
    assert key._replace(claim=claim).credential == text
    assert key.credential == key.seed
    assert isinstance(sign(text, b"x"), Signature)
    assert key.seed not in repr(key._replace(claim=claim))
    assert signer.seed not in repr(signer)


def test_a_seed_of_another_kind_signs_nothing() -> None:
    operator = new_issuer(ClaimKind.OPERATOR)
    assert read_issuer(operator.seed, ClaimKind.OPERATOR) == operator
    for seed in (operator.seed, new_key().seed, "none", ""):
        with pytest.raises(ValueError, match="seed"):
            read_issuer(seed, ClaimKind.ACCOUNT)
    assert not is_public_key(operator.public)


def of_fields(**fields: Any) -> str:
    """Return the text of a claim with other fields than `issue` writes."""
    told = {"name": "app", "iss": "O1", "sub": "A1", "iat": NOW_S, "nats": {}} | fields
    return f"a.{base64.urlsafe_b64encode(msgspec.json.encode(told)).decode().rstrip('=')}.c"


def test_a_claim_is_read_whoever_signed_it() -> None:
    assert read_claim(of_fields()) == Claim("app", "O1", "A1", NOW_S, {})


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a.b", "a.!!.c", "a.eyJ4IjoxfQ.c", "a.é.c"),
        *(of_fields(iat="now"), of_fields(iat=None), of_fields(sub=1), of_fields(nats=[])),
    ],
)
def test_what_is_no_claim_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no claim"):
        read_claim(text)
