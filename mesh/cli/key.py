"""`mesh key …`: the members' keys, and how one is replaced while the mesh runs."""

from pathlib import Path

import click
import msgspec

from mesh.bus.credentials import SEED_SUFFIX
from mesh.bus.roles import Role
from mesh.cli.options import A_PATH, Option, Where, framed, together
from mesh.cli.output import At, listing, report
from mesh.fleet.deployment import Target
from mesh.fleet.file import FleetFile, load_fleet
from mesh.fleet.generated import targets_in
from mesh.fleet.handover import hand_over
from mesh.fleet.keys import MemberKeys, keys_of, retire, rotate
from mesh.fleet.setup import ACCOUNTS, KEYS
from mesh.settings import Sources

app = click.Group(help="The members' keys: list, rotate, retire.")

_SHOWN = 12
"""Characters of a public key, as a table shows it."""

_RELOADS = {
    Target.COMPOSE: "docker compose kill --signal HUP SERVER",
    Target.SYSTEMD: "sh {out}/systemd/install.sh SERVER && systemctl reload mesh-nats@SERVER",
    Target.KUBERNETES: (
        "mesh setup --out {out} --for kubernetes, then `helm upgrade` as {out}/kustomization.yaml has it"
    ),
}
_RENEWALS = {
    Target.COMPOSE: "docker compose restart {name}",
    Target.SYSTEMD: "sh {out}/systemd/install.sh {name} && systemctl restart {unit}",
    Target.KUBERNETES: "kubectl apply -k {out}",
}

_place_options = together(
    click.option(
        "--file",
        type=A_PATH,
        default=Path("mesh.toml"),
        show_default=True,
        help="The fleet file, or its directory.",
    ),
    click.option(
        "--out",
        type=A_PATH,
        default=Path(".mesh"),
        show_default=True,
        help="Where `mesh setup --out` keeps keys and accounts.conf.",
    ),
)
_member_argument: Option = click.argument("name", metavar="NAME", help="The member's name.")


@app.command("ls")
@_place_options
@framed
def ls(*, file: Path, out: Path, as_json: bool) -> None:
    """List the members: role, public key, its age, and an old key that is valid, too."""
    found = list(keys_of(load_fleet(file), out))
    listing(
        found,
        {
            "name": lambda each: each.name,
            "role": lambda each: each.role,
            "key": lambda each: "none: run mesh setup --out" if each.key is None else each.key[:_SHOWN],
            "written": lambda each: None if each.written_at is None else At(each.written_at),
            "valid": lambda each: sum(key is not None for key in (each.key, each.old)),
            "old key": lambda each: each.old and each.old[:_SHOWN],
        },
        as_json=as_json,
    )


@app.command("rotate")
@_member_argument
@_place_options
@framed
def rotate_key(*, name: str, file: Path, out: Path, as_json: bool) -> None:
    """Give a member a new key. The old one stays valid until `mesh key retire`."""
    fleet = load_fleet(file)
    now, changed = rotate(fleet, out, name)
    done = f"{name} has a new key" if changed else f"nothing to do: {name} has a new key already"
    is_claimed = fleet.bus.auth == "jwt"
    steps = [
        *([] if is_claimed else [_reload(out)]),
        _renewal(now, out),
        f"mesh key retire {name}{'' if is_claimed else ', then step 1 again'}",
    ]
    lines = [f"{done}, {_short(now.key)}; the old one, {_short(now.old)}, stays valid. Now:"]
    lines += [f"{n}. {step}" for n, step in enumerate(steps, 1)]
    _report(now, changed, lines, as_json)


@app.command("retire")
@_member_argument
@_place_options
@framed
async def retire_key(where: Where, *, name: str, file: Path, out: Path, as_json: bool) -> None:
    """End a member's old key: once they are reloaded, the servers refuse it.

    With [bus] auth = "jwt", the servers refuse it at once if the bus is named. They need no reload.
    """
    fleet = load_fleet(file)
    now, old = retire(fleet, out, name)
    lines = [f"nothing to do: {name} has one key, {_short(now.key)}"]
    if fleet.bus.auth == "jwt":
        lines = [await _handed_over(where, fleet, file, out)]
        if old is not None:
            lines.insert(0, f"{_short(old)} is retired; {name} has one key, {_short(now.key)}")
    elif old is not None:
        lines = [
            f"the accounts no longer list {_short(old)}; {name} has one key, {_short(now.key)}. Now:",
            _reload(out),
        ]
    _report(now, old is not None, lines, as_json)


async def _handed_over(where: Where, fleet: FleetFile, file: Path, out: Path) -> str:
    """Hand the accounts over to the servers, if the bus is named, and return what was done or is to do.

    Raises as `hand_over`.
    """
    sources = Sources(where.flags)
    url = sources.url
    if url is None:
        return f"now: mesh setup --file {file} --out {out} --url URL, which hands the accounts to the servers"
    done = await hand_over(url, out, sources.tls(url))
    return f"the bus at {url} has the accounts" if done else f"the bus at {url} had the accounts already"


def _reload(out: Path) -> str:
    """Return what makes the servers read the accounts, in the words of the deployment that is there."""
    given = f"give each server {out / ACCOUNTS} and reload it"
    return "; ".join(f"{given}: {each}" for each in _in_words(_RELOADS, out)) or (
        f"{given}: nats-server --signal reload=PID"
    )


def _renewal(now: MemberKeys, out: Path) -> str:
    """Return what gives a member its new key, in the words of the deployment that is there."""
    seed = out / KEYS / f"{now.name}{SEED_SUFFIX}"
    if now.role not in (Role.AGENT, Role.GUARD):
        return f"give {seed} to who uses it"
    unit = "mesh-guard" if now.role is Role.GUARD else f"mesh-agent@{now.name}"
    words = [*_in_words(_RENEWALS, out, name=now.name, unit=unit), "kill -HUP PID"]
    return f"give {seed} to its processes, and let them read it: {words[0]}" + "".join(
        f"; or {each}" for each in words[1:-1]
    )


def _in_words(words: dict[Target, str], out: Path, **values: str) -> list[str]:
    there = targets_in(out)
    return [text.format(out=out, **values) for target, text in words.items() if target in there]


def _short(key: str | None) -> str:
    return str(key)[:_SHOWN]


def _report(now: MemberKeys, changed: bool, lines: list[str], as_json: bool) -> None:
    shown = {"changed": changed, **msgspec.to_builtins(now)}
    report(shown, "\n".join(lines), as_json=as_json, lines=True)
