"""The chain: whatever is changed in a stored event is found, and nobody can guess what an event holds."""

import hashlib
import json
from typing import Any

import pytest

from protocol.domain.hash_chain import GENESIS, LEFT, Break, Chain, breaks, link_of, redacted
from protocol.domain.ledger import fold, fold_bodies
from protocol.wire import codec
from protocol.wire.errors import Malformed, OldForm
from tests.golden.make import FORMS
from tests.unit.protocol.test_ledger import eventful
from tests.unit.protocol.worlds import Play, agents, fact

BODIES = tuple(eventful().bodies)
NAMES = [f"{n}-{json.loads(body)['type']}" for n, body in enumerate(BODIES)]
LAST = len(BODIES) - 1


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def test_a_whole_log_has_no_breaks() -> None:
    assert breaks(BODIES) == []
    assert breaks([]) == []
    assert len({json.loads(body)["type"] for body in BODIES}) >= 14


def test_each_event_names_the_bytes_of_the_one_before_it() -> None:
    named = [json.loads(body)["prev"] for body in BODIES]
    assert named == [GENESIS, *map(sha256, BODIES[:-1])]
    assert fold_bodies(BODIES).prev == sha256(BODIES[-1])


def test_a_ledger_that_was_given_no_bytes_names_those_that_its_event_makes() -> None:
    assert fold(map(codec.decode_event, BODIES)).prev == sha256(BODIES[-1])


def test_a_newer_guards_field_counts() -> None:
    """What this build does not know of is in the bytes, and the next event has to vouch for it."""
    newer = BODIES[1][:-1] + b',"since":{"value":"later"}}'
    assert fold_bodies([BODIES[0], newer]).prev == sha256(newer) != sha256(BODIES[1])


@pytest.mark.parametrize("n", range(LAST), ids=NAMES[:-1])
def test_a_change_to_any_byte_of_any_event_is_found(n: int) -> None:
    for at in range(len(BODIES[n])):
        body = bytearray(BODIES[n])
        body[at] ^= 1
        assert breaks([*BODIES[:n], bytes(body), *BODIES[n + 1 :]]), at


@pytest.mark.parametrize("n", range(LAST), ids=NAMES[:-1])
def test_another_spelling_of_the_same_event_is_found(n: int) -> None:
    spaced = json.dumps(json.loads(BODIES[n])).encode()
    assert [each.n for each in breaks([*BODIES[:n], spaced, *BODIES[n + 1 :]])] == [n + 1]


def test_an_event_that_is_left_out_moved_or_repeated_is_found() -> None:
    for n in range(LAST):
        assert breaks([*BODIES[:n], *BODIES[n + 1 :]])
        assert breaks([*BODIES[: n + 1], *BODIES[n:]])
        assert breaks([*BODIES[:n], BODIES[n + 1], BODIES[n], *BODIES[n + 2 :]])


def test_the_last_events_own_place_is_checked() -> None:
    last = json.loads(BODIES[-1])
    for key, value in (("n", 7), ("prev", "0" * 64)):
        assert breaks([*BODIES[:-1], json.dumps({**last, key: value}).encode()])


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b"7", b'"x"', b"{}", b'{"n":1}', b"\xff"])
def test_what_cannot_be_read_is_a_break_and_not_an_error(junk: bytes) -> None:
    assert [each.n for each in breaks([BODIES[0], junk, BODIES[2]])] == [1, 2]


def test_a_break_says_what_does_not_hold() -> None:
    assert breaks([BODIES[1]]) == [Break(0, "is numbered 1"), Break(0, "does not name the event before it")]


def test_a_chain_of_an_earlier_form_is_named_and_not_called_broken() -> None:
    with pytest.raises(OldForm, match="form 1"):
        breaks((FORMS / "v1.jsonl").read_bytes().splitlines())


# --- redacted events ------------------------------------------------------------------------------


def chained(bodies: list[bytes]) -> Chain:
    chain = Chain()
    for body in bodies:
        chain.take(body, link_of(body))
    return chain


@pytest.mark.parametrize("n", range(len(BODIES)), ids=NAMES)
def test_every_other_link_of_a_redacted_log_holds_and_it_says_which_events_are_redacted(n: int) -> None:
    chain = chained([*BODIES[:n], redacted(BODIES[n]), *BODIES[n + 1 :]])
    assert (chain.breaks, chain.redacted) == ([], [n])


def test_a_wholly_redacted_log_holds() -> None:
    chain = chained([redacted(body) for body in BODIES])
    assert (chain.breaks, chain.redacted) == ([], list(range(len(BODIES))))


def test_what_is_changed_in_a_redacted_log_is_found() -> None:
    changed = BODIES[2].replace(b'"at":1', b'"at":2')
    assert breaks([BODIES[0], redacted(BODIES[1]), changed, *BODIES[3:]])
    assert breaks([BODIES[0], redacted(BODIES[1].replace(b'"at":1', b'"at":2')), *BODIES[2:]])
    assert breaks([redacted(BODIES[0]), *BODIES[2:]])


@pytest.mark.parametrize("body", BODIES, ids=NAMES)
def test_nothing_but_the_envelope_and_the_digest_is_left_of_a_redacted_event(body: bytes) -> None:
    whole, left = json.loads(body), json.loads(redacted(body))
    assert left == {name: whole[name] for name in LEFT} | {"redacted": sha256(body)}
    assert redacted(redacted(body)) == redacted(body)
    with pytest.raises(Malformed, match="is redacted"):
        codec.decode_event(redacted(body))


def test_only_an_event_can_be_redacted() -> None:
    with pytest.raises(Malformed):
        redacted(b"{}")


# --- guessing -------------------------------------------------------------------------------------


def guesses(play: Play, known: dict[str, Any]) -> list[str]:
    """Return the PINs that the reader of a request's second event finds for the first one by its `prev`.

    That reader knows how such an event is written, and the time of its own. Here it is even the same.

    Args:
        known: what they know beside that of the first event.
    """
    first, own = json.loads(play.bodies[0]), json.loads(play.bodies[1])
    first["facts"][0]["value"] = "@@@@"
    first["salt"] = ""
    template = json.dumps(first | known, separators=(",", ":")).encode()
    return [
        pin for pin in (f"{n:04}" for n in range(10_000))
        if sha256(template.replace(b"@@@@", pin.encode())) == own["prev"]
    ]  # fmt: skip


def test_who_may_not_see_a_short_value_cannot_guess_it_from_the_digest_of_its_event() -> None:
    play = Play(fleet=agents("a"))
    play.submit(facts=(fact("pin", "4711", "pii"),))
    assert play.events[1].to == "a"
    assert b"4711" not in play.bodies[1]
    assert guesses(play, {}) == []
    assert guesses(play, {"salt": play.events[0].salt}) == ["4711"]  # that is what the salt is for


def test_each_event_has_a_salt_of_its_own() -> None:
    salts = [json.loads(body)["salt"] for body in BODIES]
    assert len(set(salts)) == len(salts)
