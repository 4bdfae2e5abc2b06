"""Agents of one machine under systemd: what one of them can read of another's."""

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.validator import DEPLOY
from tests.servers import PATIENCE_S

UNIT = (DEPLOY / "systemd" / "mesh-agent@.service").read_text()
SHARED = re.sub(r"^User=.*$", "User=mesh-agents", UNIT, flags=re.MULTILINE)
"""The unit without the protection."""
SEED, KEY = "SUABILLINGSSEED", "sk-of-a-model"
BOUND = ("--clear-groups", "--no-new-privs", "--bounding-set=-all")


def may_unshare() -> bool:
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


def settings(unit: str, name: str, key: str) -> list[str]:
    found = re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)
    return [each.replace("%i", name) for each in found]


def uid_of(unit: str, name: str) -> int:
    """Return the uid that systemd would give: one for each name of a user."""
    (user,) = settings(unit, name, "User")
    return 64_000 + sum(user.encode()) % 1_000


@contextlib.contextmanager
def started(unit: str, name: str, folder: Path) -> Iterator[int]:
    """Start an agent as systemd does: its seed in a mount of its own, its model's key in its environment."""
    uid = uid_of(unit, name)
    mounted = folder / "credentials"
    mounted.mkdir(mode=0o755)
    script = (
        f"mount -t tmpfs -o mode=0755 none {mounted} && mkdir {mounted}/{name} "
        f"&& echo {SEED} > {mounted}/{name}/{name}.nk && chown -R {uid} {mounted}/{name} "
        f"&& chmod 500 {mounted}/{name} && chmod 400 {mounted}/{name}/{name}.nk "
        f"&& exec env ANTHROPIC_API_KEY={KEY} setpriv --reuid {uid} --regid {uid} {' '.join(BOUND)} "
        f"sh -c 'echo ready; exec sleep 600'"
    )
    command = ["unshare", "-m", "--propagation", "private", "sh", "-ec", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def read_by(unit: str, name: str, path: str) -> str:
    uid = uid_of(unit, name)
    command = ["setpriv", "--reuid", str(uid), "--regid", str(uid), *BOUND, "cat", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.stdout


@pytest.mark.skipif(os.getuid() != 0 or not may_unshare(), reason="takes root and mount namespaces")
@pytest.mark.parametrize("unit", [SHARED, UNIT], ids=["one-user", "as-shipped"])
def test_no_agent_reads_anothers_seed_or_environment(unit: str) -> None:
    with tempfile.TemporaryDirectory() as place, started(unit, "billing", Path(place)) as pid:
        Path(place).chmod(0o755)  # the folders of pytest are closed to other users
        seed = f"/proc/{pid}/root{place}/credentials/billing/billing.nk"
        own = read_by(unit, "billing", seed)
        assert SEED in own
        taken = read_by(unit, "triage", seed) + read_by(unit, "triage", f"/proc/{pid}/environ")
    assert (SEED in taken) == (KEY in taken) == (unit is SHARED)


def test_the_unit_gives_each_agent_a_user_and_a_state_of_its_own() -> None:
    for key in ("User", "StateDirectory", "LoadCredential"):
        first, second = settings(UNIT, "billing", key), settings(UNIT, "triage", key)
        assert len(first) == 1
        assert first != second, key
    assert "StateDirectoryMode=0700" in UNIT.splitlines()
    assert not settings(UNIT, "billing", "Group")
