"""`mesh artifact`, and what `mesh doctor` says of the store: of the one that is configured where it runs."""

import os
from pathlib import Path

import msgspec
import pytest

from mesh.ops import fleet_checks, health
from mesh.ops.health import Finding, Look
from mesh.settings import Dev, Sources
from protocol.wire.config import Fleet
from tests.servers import FLEET
from tests.system.terminal import in_process


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MESH_ARTIFACTS", raising=False)
    return tmp_path


def mesh(*arguments: str) -> str:
    done = in_process(*arguments)
    assert done.exit_code == 0, done.output
    return done.output.strip()


def test_a_file_goes_into_the_store_and_comes_out(here: Path) -> None:
    (here / "scan.pdf").write_bytes(b"%PDF")
    uri = mesh("artifact", "save", "scan.pdf")
    assert uri.startswith("mesh-artifact:sha256/")
    assert mesh("artifact", "get", uri, "copy.pdf") == "copy.pdf"
    assert (here / "copy.pdf").read_bytes() == b"%PDF"
    assert (here / ".mesh" / "artifacts" / uri.partition(":")[2]).is_file()
    said = msgspec.json.decode(mesh("artifact", "save", "scan.pdf", "--media-type", "text/pdf", "--json"))
    assert (said["name"], said["uri"], said["size"], said["media_type"]) == ("scan.pdf", uri, 4, "text/pdf")


def test_a_uri_of_elsewhere_is_a_line_and_no_file(here: Path) -> None:
    done = in_process("artifact", "get", "file:///etc/passwd", "copy")
    assert done.exit_code == 1
    assert "[artifact.foreign]" in done.output
    assert list(here.iterdir()) == []


def test_a_file_or_folder_that_is_not_there_is_wrong_usage(here: Path) -> None:
    (here / "scan.pdf").write_bytes(b"%PDF")
    uri = mesh("artifact", "save", "scan.pdf")
    for arguments in (("save", "none.pdf"), ("save", "."), ("get", uri, "none/copy.pdf"), ("get", uri, ".")):
        done = in_process("artifact", *arguments)
        assert done.exit_code == 2, done.output
        assert arguments[-1] in done.output


def test_the_store_is_of_the_environment_then_of_mesh_dev_then_of_the_file(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Sources().artifacts == str(here / ".mesh" / "artifacts")
    (here / "mesh.toml").write_text('[artifacts]\nstore = "kept"\n')
    assert Sources().artifacts == str(here / "kept")
    (here / ".mesh").mkdir(mode=0o700)
    dev = Dev(pid=os.getpid(), url="nats://127.0.0.1:1", keys=here, artifacts="s3://of-dev")
    (here / ".mesh" / "dev.json").write_bytes(dev.encode())
    (here / ".mesh" / "dev.json").chmod(0o600)
    assert Sources().artifacts == "s3://of-dev"
    monkeypatch.setenv("MESH_ARTIFACTS", "s3://mine")
    assert Sources().artifacts == "s3://mine"


# --- doctor ---------------------------------------------------------------------------------------


async def found(store: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    async def fleet_of(bus: object) -> Fleet:
        return msgspec.structs.replace(FLEET, artifacts=store)

    monkeypatch.setattr(fleet_checks, "fleet_of", fleet_of)
    found: list[Finding] = await health.run("artifacts", Look(None))  # type: ignore[arg-type]  # it asks no bus
    (finding,) = found
    return finding.state, finding.text


async def test_doctor_finds_a_bucket_that_lacks_and_one_that_answers(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await found(bucket, monkeypatch) == ("ok", "the store of artifacts answers")
    state, text = await found("s3://no-such-bucket", monkeypatch)
    assert (state, "does not exist (NoSuchBucket)" in text) == ("found", True)


async def test_doctor_does_not_judge_a_folder_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    state, text = await found("/srv/kept", monkeypatch)
    assert (state, text) == ("ok", "a folder, /srv/kept: every process that saves or loads has to share it")
