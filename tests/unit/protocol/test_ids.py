"""Ids: derivation gives fixed answers, and what may be an id is exactly that."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire import ids

ULID = "01HF7YAT0060RK4CSM6MV3EE1S"


def test_a_derived_id_is_the_first_130_bits_of_sha256_in_lower_case_base32() -> None:
    digest = int.from_bytes(hashlib.sha256(b"p\x1fc1_X\x1ft\x1f0").digest())
    bits = digest >> (256 - 130)
    alphabet = "abcdefghijklmnopqrstuvwxyz234567"
    expected = "".join(alphabet[bits >> shift & 31] for shift in range(125, -1, -5))
    assert ids.proposal_id("c1_X", "t", 0) == expected


@given(st.lists(st.one_of(st.text(), st.integers()), min_size=1, max_size=4))
def test_every_derived_id_is_a_token_of_26_characters(parts: list[str | int]) -> None:
    try:
        made = ids.derive(*parts)
    except UnicodeEncodeError:  # a lone surrogate: no JSON and no subject brings one here
        return
    assert len(made) == 26
    assert ids.is_token(made)


def test_parts_are_kept_apart() -> None:
    assert ids.derive("ab", "c") != ids.derive("a", "bc")


@given(st.integers(0, (1 << 48) - 1), st.binary(min_size=10, max_size=10))
def test_a_ulid_tells_its_time_and_sorts_by_it(at_ms: int, entropy: bytes) -> None:
    made = ids.request_id("c1", at_ms, entropy)
    assert ids.is_request_id(made)
    assert ids.submitted_ms(made) == at_ms
    assert ids.submitter_of(made) == "c1"
    if at_ms:
        assert ids.ulid(at_ms - 1, b"\xff" * 10) < ids.ulid(at_ms, entropy)


def test_a_ulid_has_crockfords_form() -> None:
    assert ids.ulid(1469918176385, bytes(10)) == "01ARYZ6S410000000000000000"  # the ULID document's time
    assert ids.ulid(0, bytes(9) + b"\x01")[-1] == "1"
    assert ids.ulid((1 << 48) - 1, b"\xff" * 10) == "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"


@pytest.mark.parametrize(
    ("at_ms", "entropy"),
    [
        pytest.param(-1, bytes(10), id="before-1970"),
        pytest.param(1 << 48, bytes(10), id="too-late"),
        pytest.param(0, bytes(9), id="too-little-entropy"),
        pytest.param(0, bytes(11), id="too-much-entropy"),
    ],
)
def test_what_is_no_ulid_is_our_own_mistake(at_ms: int, entropy: bytes) -> None:
    with pytest.raises(ValueError, match="ULID"):
        ids.ulid(at_ms, entropy)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        pytest.param(f"c1_{ULID}", True, id="canonical"),
        pytest.param(f"{'a' * 24}_{ULID}", True, id="longest-name"),
        pytest.param(f"{'a' * 25}_{ULID}", False, id="name-too-long"),
        pytest.param(f"c1_{ULID.lower()}", False, id="lower-case"),
        pytest.param(f"c1_{ULID[:-1]}", False, id="too-short"),
        pytest.param(f"c1_{ULID}0", False, id="too-long"),
        pytest.param(f"c1_8{ULID[1:]}", False, id="more-than-128-bits"),
        pytest.param(f"c1_{ULID[:-1]}I", False, id="letter-that-crockford-lacks"),
        pytest.param(f"C1_{ULID}", False, id="upper-case-name"),
        pytest.param(f"_{ULID}", False, id="no-name"),
        pytest.param(ULID, False, id="bare-ulid"),
        pytest.param(f"c1_{ULID}\n", False, id="line-end"),
        pytest.param(f"c.1_{ULID}", False, id="dot"),
        pytest.param("", False, id="empty"),
    ],
)
def test_a_request_id_is_a_name_and_a_canonical_ulid(text: str, is_one: bool) -> None:
    assert ids.is_request_id(text) is is_one
    if is_one:
        assert len(text) <= ids.MAX_ID_CHARS


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("triage", True),
        ("a-1", True),
        ("-", True),
        ("a" * 24, True),
        ("a" * 25, False),
        ("", False),
        ("human", False),
        ("any", True),
        ("any-", False),
        ("any-review", False),
        ("_", False),
        ("A", False),
        ("a.b", False),
        ("a*", False),
        ("a\n", False),
        ("ä", False),
    ],
)
def test_a_name_has_24_plain_characters_and_is_neither_human_nor_an_intents_inbox(
    text: str, is_one: bool
) -> None:
    assert ids.is_name(text) is is_one


@pytest.mark.parametrize("text", ["", "a.b", "a b", "*", ">", "a\n", "x" * 65, "é", "$SYS"])
def test_a_token_holds_nothing_that_a_subject_gives_meaning_to(text: str) -> None:
    assert not ids.is_token(text)
