"""The hand-over of accounts to running servers, which take them over the bus, without a reload."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from mesh.bus.accounts import HANDOVER, LOOKUP, UPDATE
from mesh.bus.claims import Claim, read_claim
from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import NO_FILES, TlsFiles, read_key, seed_file
from mesh.errors import Impossible, MeshError
from mesh.fleet.operator import signed_in
from mesh.fleet.setup import KEYS


class HandoverFailed(MeshError, code="setup.handover"):
    """The servers do not take the claim of an account. The text has the reason."""


class _Outcome(msgspec.Struct):
    code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    error: _Outcome | None = None
    data: _Outcome | None = None


async def hand_over(url: str, directory: Path, tls: TlsFiles = NO_FILES) -> list[str]:
    """Give the running servers the claims that they lack; return the names of their accounts.

    Args:
        directory: the folder of `mesh.fleet.setup.prepare`.

    Raises HandoverFailed, Impossible if the key for it is not there, and BusError. Each step can be repeated.
    """
    async with await _connected(url, directory, tls) as bus:
        lacking = [each async for each in _lacking(bus, directory)]
        for claim, text in lacking:
            answer = _read_answer(claim.name, (await bus.request(UPDATE, text.encode())).data)
            if answer.error is not None or answer.data is None or answer.data.code != 200:
                why = answer.error.description if answer.error is not None else "no reason given"
                raise HandoverFailed(f"the bus does not take the claim of the account {claim.name}: {why}")
    return [claim.name for claim, _ in lacking]


async def lacking_accounts(url: str, directory: Path, tls: TlsFiles = NO_FILES) -> list[str]:
    """Return the names of the accounts of which the running servers lack the claim. Raises as `hand_over`."""
    async with await _connected(url, directory, tls) as bus:
        return [claim.name async for claim, _ in _lacking(bus, directory)]


async def _connected(url: str, directory: Path, tls: TlsFiles) -> Bus:
    path = seed_file(directory / KEYS, HANDOVER)
    try:
        key = read_key(path)
    except (OSError, ValueError) as missing:
        raise Impossible(f"{path}: accounts are handed over with this key: {missing}") from missing
    return await connect(url, name=HANDOVER, seed=key.credential, tls=tls)


async def _lacking(bus: Bus, directory: Path) -> AsyncIterator[tuple[Claim, str]]:
    """Yield the claims that the servers lack, and their text. Raises HandoverFailed for one that is older.

    A server would take an older claim, too: what was retired in the meantime would be valid again.
    """
    for text in signed_in(directory):
        claim = read_claim(text)
        held = (await bus.request(LOOKUP.format(account=claim.subject))).data
        if held == text.encode():
            continue
        known = _read_held(claim.name, held) if held else None
        if known is not None and known.issuer == claim.issuer and known.issued_at_s >= claim.issued_at_s:
            raise HandoverFailed(
                f"the bus has a newer claim of the account {claim.name} than {directory}: use the folder "
                "where keys were rotated last"
            )
        yield claim, text


def _read_answer(account: str, data: bytes) -> _Answer:
    """Return how a server answered to the claim of an account. Raises HandoverFailed."""
    try:
        return msgspec.json.decode(data, type=_Answer)
    except (ValueError, msgspec.MsgspecError) as unreadable:
        raise HandoverFailed(
            f"the bus was given the claim of the account {account}, and its answer cannot be read: "
            f"{unreadable}"
        ) from unreadable


def _read_held(account: str, data: bytes) -> Claim:
    """Return the claim of an account that a server has. Raises HandoverFailed."""
    try:
        return read_claim(data.decode())
    except ValueError as unreadable:
        raise HandoverFailed(
            f"the bus was asked for its claim of the account {account}, and its answer cannot be read: "
            f"{unreadable}"
        ) from unreadable
