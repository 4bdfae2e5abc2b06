"""Generated files in a folder: kept up to date, and never overwritten once a person edited them.

`.generated.json` beside them holds the digest of each file as it was written, for each target. A file
with another digest was edited: it stays, and the new text goes beside it as `NAME.new`.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from mesh.bus.provision import Change
from mesh.fleet.compose import compose_files
from mesh.fleet.deployment import Deployment, DeploymentImpossible, Target, fleet_copy
from mesh.fleet.kubernetes import kubernetes_files
from mesh.fleet.systemd import systemd_files

RECORD = ".generated.json"
_IGNORED = {
    ".gitignore": "# Seeds, private keys, and variables of agents: no commit may hold them.\n"
    "keys/\ntls/\n/*.env\n"
}


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a folder's generated files were when they were written."""

    targets: dict[Target, dict[str, str]] = {}
    """By target: the SHA-256 of each file, by its path."""


def targets_in(directory: Path) -> frozenset[Target]:
    """Return the targets whose files a folder has. Raises DeploymentImpossible."""
    return frozenset(_read(directory / RECORD).targets)


def files_of(deployment: Deployment, accounts: str) -> dict[str, str]:
    """Return the text of each file of a deployment, by its path. Raises DeploymentImpossible.

    Args:
        accounts: the accounts part of the server's configuration.
    """
    deployment.check()
    match deployment.target:
        case Target.COMPOSE:
            made = compose_files(deployment)
        case Target.SYSTEMD:
            made = systemd_files(deployment)
        case Target.KUBERNETES:
            made = kubernetes_files(deployment, accounts)
    return made | fleet_copy(deployment) | _IGNORED


def update(
    directory: Path, target: Target, files: Mapping[str, str], *, dry_run: bool = False
) -> tuple[list[Change], list[Path]]:
    """Write files below a folder; return the changes, made or (with `dry_run`) needed, and the edited files.

    A file that is not among `files` any more goes, unless it was edited.

    Raises DeploymentImpossible if the folder cannot be read or written.
    """
    try:
        return _update(directory, target, files, dry_run)
    except OSError as failed:
        raise DeploymentImpossible(f"{failed.filename or directory}: {failed.strerror}") from failed
    except UnicodeDecodeError as failed:
        raise DeploymentImpossible(
            f"{directory}: a file that is to be written is no text: {failed}"
        ) from failed


def _update(
    directory: Path, target: Target, files: Mapping[str, str], dry_run: bool
) -> tuple[list[Change], list[Path]]:
    known = _read(directory / RECORD)
    before = known.targets.get(target, {})
    others = {name for each, names in known.targets.items() if each is not target for name in names}
    changes, edited, written = list[Change](), list[Path](), dict[str, str]()
    for name, text in files.items():
        path, beside = directory / name, directory / f"{name}.new"
        present = path.read_text() if path.exists() else None
        written[name] = _digest(text)
        if present is not None and present != text and _digest(present) != before.get(name):
            edited.append(path)
            written[name] = before.get(name, "")
            path = beside
            present = beside.read_text() if beside.exists() else None
        elif beside.exists():
            changes += _remove(beside, dry_run)
        if present != text:
            changes.append(Change("create" if present is None else "update", str(path)))
            if not dry_run:
                path.parent.mkdir(parents=True, exist_ok=True)
                _replace(path, text)
    for name in sorted(before.keys() - files.keys() - others):
        path = directory / name
        if path.is_file() and _digest(path.read_text()) == before[name]:
            changes += _remove(path, dry_run)
    encoded = msgspec.json.encode(Written(known.targets | {target: written}), order="sorted")
    record = f"{msgspec.json.format(encoded).decode()}\n"
    path = directory / RECORD
    if not dry_run and (not path.exists() or path.read_text() != record):
        _replace(path, record)  # last: files that are newer than it are found to be as they should be
    return changes, edited


def _read(path: Path) -> Written:
    if not path.exists():
        return Written()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Written)
    except msgspec.MsgspecError as wrong:
        raise DeploymentImpossible(
            f"{path}: {wrong}; it says which files are unedited: restore it"
        ) from wrong


def _remove(path: Path, dry_run: bool) -> list[Change]:
    if not dry_run:
        path.unlink()
    return [Change("delete", str(path))]


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
