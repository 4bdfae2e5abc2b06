"""The accounts of a mesh as claims, for servers in operator mode, from the table of roles.

They grant exactly what `mesh.bus.roles.accounts_config` grants. Each member's permissions belong to a signing
key of its account. A user whose claim that key signed has these permissions, and cannot have others.

An export is wide: one for all members, in place of each one's name a `*`. An import has the member's own name
in it, so it alone decides what an account reaches. The operator signs both, and nobody else can import. So
another member changes nothing of CORE's exports. None covers another one, since servers refuse such a claim.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mesh.bus.roles import (
    ANSWERS,
    API,
    CALLS,
    CORE,
    HEARS,
    INBOX,
    ME,
    OFFERS,
    OUTSIDE_API,
    Grants,
    Role,
    Service,
    calls,
    grants,
    lane_mapping,
    members,
    quoted,
)
from mesh.bus.streams import offers_to
from protocol.wire.config import Fleet

SYSTEM = "SYS"
"""The servers' own account, to which accounts are handed over."""
HANDOVER = "_sys"
"""The user in SYSTEM who hands them over. No member can have that name."""
UPDATE = "$SYS.REQ.CLAIMS.UPDATE"
LOOKUP = "$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP"
_EVERYBODY = "*"
_FOR_GOOD_S = 2**33
"""A date (UTC s) after that of any claim: what is revoked until then stays revoked."""
_NANO = 10**9
_UNLIMITED = -1
_ASKS_S = 5

Content = dict[str, Any]
"""What a claim says, in the fields of NATS."""


class AccountKeys(NamedTuple):
    """Public keys of the accounts' own and of those that sign users' claims."""

    accounts: Mapping[str, str]
    """By account: CORE, SYSTEM, and each member outside CORE."""
    signers: Mapping[str, str]
    """By user: each member, and HANDOVER."""


def account_of(role: Role, name: str) -> str:
    """Return the account that a member is in."""
    return grants(role, name).account


def account_claims(fleet: Fleet, keys: AccountKeys) -> dict[str, Content]:
    """Return what the claim of each account says, by account. Revocations are not in it.

    Raises ValueError for invalid names.
    """
    core = keys.accounts[CORE]
    scopes, answers = list[Content](), list[Content]()
    found = {SYSTEM: _system(keys)}
    for role, name in members(fleet):
        intents = offers_to(fleet, name)
        granted = grants(role, name, intents, partitions=fleet.partitions)
        scope = _scope(keys.signers[name], name, granted)
        if granted.account == CORE:
            scopes.append(scope)
            continue
        called = (each.subject for each in calls(role, name, intents))
        imports = [_import("service", core, subject.replace(OUTSIDE_API, API), subject) for subject in called]
        imports += [_import("stream", core, subject.replace(ME, name)) for subject in HEARS[role]]
        answered = [each._replace(subject=each.subject.replace(ME, name)) for each in ANSWERS[role]]
        answers += [_import("service", keys.accounts[name], each.subject, each.subject) for each in answered]
        exports = [_service(each.subject, each) for each in answered]
        found[name] = _account([scope], exports, imports, lane_mapping(role, name, fleet.partitions))
    return found | {CORE: _account(scopes, core_exports(), answers, storage=True)}


def user_claim(keys: AccountKeys, account: str) -> Content:
    """Return what the claim of a user in an account says."""
    return {"issuer_account": keys.accounts[account]}


def operator_claim(keys: AccountKeys) -> Content:
    """Return what the operator's claim says."""
    return {"system_account": keys.accounts[SYSTEM]}


# --- revocation ---------------------------------------------------------------------------------------


def revoked_in(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the revocations in an account's claim: by a user's public key, until when."""
    found = dict(content.get("revocations") or {})
    found.pop(_EVERYBODY, None)
    return found


def with_revoked(content: Content, revoked: Mapping[str, int], *keys: str) -> Content:
    """Return an account's claim that also revokes users for good, whatever the date of their claims.

    Args:
        revoked: earlier revocations (`revoked_in`).
        keys: public keys of users.
    """
    together = {**revoked, **dict.fromkeys(keys, _FOR_GOOD_S)}
    return {**content, "revocations": together} if together else content


def closed_account(revoked: Mapping[str, int]) -> Content:
    """Return the claim of an account whose member has left: no user gets in, and nothing is imported."""
    return with_revoked(_account([], [], []), revoked, _EVERYBODY)


# --- the server's configuration ---------------------------------------------------------------------


def operator_config(operator: str, keys: AccountKeys, claims: Mapping[str, str]) -> str:
    """Return the accounts part of a server's configuration, which it needs when it starts for the first time.

    Args:
        operator: the operator's claim.
        claims: the claim of each account, by its public key. A server with a newer one keeps that.
    """
    preloaded = (f"  {account}: {claim}" for account, claim in claims.items())
    lines = (
        f"operator: {operator}",
        f"system_account: {keys.accounts[SYSTEM]}",
        "resolver_preload {",
        *preloaded,
        "}",
    )
    return "\n".join(lines) + "\n"


def resolver_config(folder: Path | str) -> str:
    """Return the lines with which a server keeps accounts that it is handed over in a folder of its own.

    A server that was away asks the others at this interval for what it missed. By default that is a minute.
    """
    lines = ("resolver {", "  type: full", f"  dir: {quoted(str(folder))}", f'  interval: "{_ASKS_S}s"', "}")
    return "\n".join(lines)


# --- one claim ----------------------------------------------------------------------------------------


def core_exports() -> list[Content]:
    """Return what CORE lets members call and hear, whoever they are. No export covers another one.

    Raises ValueError if two cover each other and answer in different ways.
    """
    calls_of = [call for called in CALLS.values() for call in called] + list(OFFERS)
    found = [_service(_widened(each.subject.replace(OUTSIDE_API, API)), each) for each in calls_of]
    found += [_stream(_widened(heard)) for hears in HEARS.values() for heard in hears]
    different = [each for place, each in enumerate(found) if each not in found[:place]]
    kept = list[Content]()
    for export in different:
        wider = [each for each in different if each is not export and _covers(each, export)]
        for each in wider:
            if {**each, "subject": ""} != {**export, "subject": ""}:
                raise ValueError(f"{each['subject']} and {export['subject']} answer in different ways")
        kept += [] if wider else [export]
    return kept


def _widened(pattern: str) -> str:
    """Return a subject for all members: a token with a placeholder becomes `*`."""
    return ".".join("*" if "{" in token else token for token in pattern.split("."))


def _covers(wide: Content, narrow: Content) -> bool:
    """Return True if an export takes every subject of another one of its kind."""
    if wide["type"] != narrow["type"]:
        return False
    tokens, others = wide["subject"].split("."), narrow["subject"].split(".")
    for place, token in enumerate(tokens):
        if place >= len(others):
            return False
        if token == ">":
            return True
        if token != others[place] and (token != "*" or others[place] == ">"):
            return False
    return len(tokens) == len(others)


def _service(subject: str, service: Service) -> Content:
    within = {} if service.within_s is None else {"response_threshold": service.within_s * _NANO}
    kind = "Stream" if service.many else "Singleton"
    return {"subject": subject, "type": "service", "response_type": kind, **within}


def _stream(subject: str) -> Content:
    return {"subject": subject, "type": "stream"}


def _import(kind: str, account: str, subject: str, local: str = "") -> Content:
    """Return what an account imports under a subject of its own; of a stream, under the same one."""
    where = {"local_subject": local} if local else {}
    return {"account": account, "subject": subject, "type": kind, **where}


def _scope(signer: str, name: str, granted: Grants) -> Content:
    """Return a signing key with the permissions of every user whose claim it signs."""
    allowed = {"pub": granted.publish, "sub": granted.subscribe}
    permissions = {way: {} if subjects is None else {"allow": subjects} for way, subjects in allowed.items()}
    template = permissions | dict.fromkeys(("subs", "data", "payload"), _UNLIMITED)
    return {"kind": "user_scope", "key": signer, "role": name, "template": template}


def _system(keys: AccountKeys) -> Content:
    publish = (UPDATE, LOOKUP.format(account="*"))
    granted = Grants(SYSTEM, publish, (f"{INBOX}.{HANDOVER}.>",))
    return _account([_scope(keys.signers[HANDOVER], HANDOVER, granted)], [], [])


def _account(
    scopes: Iterable[Content],
    exports: Iterable[Content],
    imports: Iterable[Content],
    mapping: Mapping[str, str] | None = None,
    *,
    storage: bool = False,
) -> Content:
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn"), _UNLIMITED)
    stores = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), _UNLIMITED)
    mapped = {asked: [{"subject": heard, "weight": 100}] for asked, heard in (mapping or {}).items()}
    content = {
        "limits": {**limits, **(stores if storage else {}), "wildcards": True, "leaf": 0},
        "signing_keys": list(scopes),
        "exports": list(exports),
        "imports": list(imports),
        "mappings": mapped,
    }
    return {field: value for field, value in content.items() if value}
