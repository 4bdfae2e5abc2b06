"""`mesh gateway …` at a terminal, and its page."""

import json
from pathlib import Path

import pytest

from mesh.cli.exits import Exit
from mesh.cli.gateway import app
from mesh.gateway import USUAL_PORT, GatewayNotInstalled, require_installed
from mesh.gateway.store import KEY_LASTS_S, request_of_key
from mesh.gateway.tokens import TokenBook, TokenLimits
from tests.docs.pages import read
from tests.system.terminal import commands_of, in_process

PAGE = read("gateway.md")


def test_a_token_is_printed_once_listed_and_revoked(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    made = in_process(
        "gateway", "token", "app", "--tokens", file, "--note", "shop", "--streams", "7", "--json"
    )
    assert made.exit_code == Exit.DONE, made.output
    shown = json.loads(made.stdout)
    token = shown.pop("token")
    assert (shown["client"], shown["note"], shown["streams"]) == ("app", "shop", 7)
    found = TokenBook(file).find(token)
    assert found is not None
    assert (found.client, found.limits) == ("app", TokenLimits(streams=7))
    listed = in_process("gateway", "tokens", "--tokens", file, "--json")
    assert json.loads(listed.stdout) == [shown]
    assert token not in listed.stdout
    assert "shop" in in_process("gateway", "tokens", "--tokens", file).stdout
    assert in_process("gateway", "revoke", shown["id"], "--tokens", file).exit_code == Exit.DONE
    assert TokenBook(file).find(token) is None
    again = in_process("gateway", "revoke", shown["id"], "--tokens", file)
    assert again.exit_code != Exit.DONE
    assert shown["id"] in again.stderr


@pytest.mark.parametrize("client", ["", "A", "human", "any-x", "a b"])
def test_a_token_of_what_is_no_name_is_not_made(tmp_path: Path, client: str) -> None:
    result = in_process("gateway", "token", client, "--tokens", tmp_path / "t.json")
    assert result.exit_code == Exit.USAGE
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize("body", ["", "{", "[]", '{"v": 2, "tokens": []}', '{"v": 1, "tokens": [{}]}'])
def test_a_file_that_holds_no_tokens_is_named_and_left_alone(tmp_path: Path, body: str) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(body)
    for arguments in (("tokens",), ("token", "app"), ("revoke", "x"), ("run",)):
        result = in_process("gateway", *arguments, "--tokens", file)
        assert result.exit_code == Exit.USAGE, arguments
        assert str(file) in result.stderr
    assert file.read_text() == body


def test_without_its_libraries_it_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.gateway.find_spec", lambda name: None)
    with pytest.raises(GatewayNotInstalled, match=r"handoff-mesh\[ui\]"):
        require_installed()


def test_without_the_extra_of_a2a_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.gateway.find_spec", lambda name: None if name == "a2a" else name)
    require_installed()
    with pytest.raises(GatewayNotInstalled, match=r"handoff-mesh\[a2a\]"):
        require_installed(a2a=True)


@pytest.mark.parametrize("url", ["agents.example", "ftp://a.example", "https://u:p@a.example"])
def test_a_public_url_is_one_of_http(tmp_path: Path, url: str) -> None:
    (tmp_path / "mesh.toml").write_text('name = "x"\nentry = "a"\n[agents.a]\n')
    more = ("--fleet", tmp_path, "--tokens", tmp_path / "t.json", "--public-url", url)
    result = in_process("gateway", "run", "--a2a", *more)
    assert result.exit_code == Exit.USAGE
    assert "--public-url" in result.stderr


def test_a_key_is_the_same_request_for_five_minutes_in_every_gateway() -> None:
    assert request_of_key("app", "k", 900) == request_of_key("app", "k", 1_199)
    others = {
        request_of_key("app", "k", 1_200),
        request_of_key("app", "l", 900),
        request_of_key("b", "k", 900),
    }
    assert len(others | {request_of_key("app", "k", 900)}) == 4
    assert "within the same five minutes of the clock" in " ".join(PAGE.split())
    assert f"for {KEY_LASTS_S // 3600} hours" in PAGE


def test_its_page_names_every_option_and_the_numbers_of_the_code() -> None:
    usual = {
        "--url",
        "--context",
        "--as",
        "--tls-ca",
        "--tls-cert",
        "--tls-key",
        "--port",
        "--grace",
        "--output",
    }
    options = {
        name
        for command in commands_of(app).values()
        for option in command.params
        for name in option.opts
        if name.startswith("--")
    }
    assert [name for name in sorted(options - usual - {"--json"}) if f"{name}" not in PAGE] == []
    limits = TokenLimits()
    assert f"({limits.per_second:g} by default" in PAGE
    assert f"`--body-kib` ({limits.body_kib})" in PAGE
    assert f"({limits.streams:,})" in PAGE
    assert f"127.0.0.1:{USUAL_PORT}" in PAGE
