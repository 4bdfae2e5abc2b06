"""Which word holds: the command line's, then the environment's, then a file's."""

import json
import os
from pathlib import Path

import pytest

from mesh.bus.credentials import new_key, write_key
from mesh.cli.exits import Exit, status_of
from mesh.settings import (
    DEFAULT_URL,
    DEV_FILE,
    FILE_NAME,
    STATE,
    Access,
    AnotherFleet,
    ContextUnusable,
    Dev,
    DevStopped,
    Flags,
    NoCredentials,
    SettingsInvalid,
    Sources,
    find_access,
    load_settings,
    running_dev,
)

DEV_URL = "nats://127.0.0.1:7001"


def runs_dev(directory: Path, pid: int | None = None, fleet: str = "") -> Path:
    """Make `directory` look as if `mesh dev` ran in it; return the directory of its keys."""
    keys = directory / STATE / "keys"
    for name in ("admin", "app", "audit", "ops"):
        write_key(keys, name, new_key())
    dev = Dev(
        fleet=fleet,
        folder=directory,
        pid=pid or os.getpid(),
        url=DEV_URL,
        keys=keys,
        clients=("app",),
        viewers=("audit",),
        operators=("ops",),
    )
    (directory / STATE / DEV_FILE).write_bytes(dev.encode())
    (directory / STATE / DEV_FILE).chmod(0o600)
    return keys


def has_context(home: Path, name: str, **said: object) -> None:
    directory = home / ".config" / "nats" / "context"
    directory.mkdir(parents=True)
    (directory / f"{name}.json").write_text(json.dumps(said))


def test_beside_a_running_dev_a_command_finds_url_and_key_by_itself(here: Path) -> None:
    keys = runs_dev(here)
    assert find_access(("client",)) == Access(DEV_URL, "app", keys / "app.nk")
    assert find_access(("viewer", "operator")).name == "audit"
    assert find_access(("operator",), Flags(name="audit")).name == "audit"
    assert find_access(("admin",)).seed.startswith("SU")


def test_a_directory_below_is_the_same_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_dev(here)
    below = here / "notes" / "today"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_access(("client",)).url == DEV_URL


def fleet_file(directory: Path, name: str, *lines: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / FILE_NAME).write_text("\n".join((f'name = "{name}"', *lines, "")))
    return directory


def test_a_project_in_a_folder_below_is_none_of_this_devs(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_dev(fleet_file(here, "above"), fleet="above")
    below = fleet_file(here / "below", "another")
    (below / "notes").mkdir()
    for folder in (below, below / "notes"):
        monkeypatch.chdir(folder)
        assert running_dev(folder) is None
        with pytest.raises(AnotherFleet) as wrong:
            find_access(("client",))
        assert f"`mesh dev` that runs in {here} serves the fleet 'above'" in str(wrong.value)
        assert f"{below / FILE_NAME} is the fleet 'another': start `mesh dev`" in str(wrong.value)
    assert status_of(AnotherFleet.code) == Exit.USAGE


def test_a_project_of_the_same_name_in_a_folder_below_is_still_another(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_dev(fleet_file(here, "same"), fleet="same")
    monkeypatch.chdir(fleet_file(here / "copy", "same"))
    with pytest.raises(AnotherFleet, match="that runs in"):
        find_access(("client",))


def test_a_dev_of_another_fleet_than_the_file_beside_it_is_not_taken_for_it(here: Path) -> None:
    runs_dev(fleet_file(here, "written"), fleet="support")
    with pytest.raises(AnotherFleet, match=r"'support', and .* is the fleet 'written'.*--url " + DEV_URL):
        find_access(("client",))
    with pytest.raises(AnotherFleet):
        Sources().artifacts  # noqa: B018
    assert find_access(("client",), Flags(url=DEV_URL)).name == "app"


def test_a_dev_of_the_fleet_in_the_file_beside_it_serves_every_folder_below(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_dev(fleet_file(here, "own"), fleet="own")
    (here / "notes").mkdir()
    for folder in (here, here / "notes"):
        monkeypatch.chdir(folder)
        assert find_access(("client",)).url == DEV_URL


def test_a_bus_and_a_key_that_are_named_need_no_dev(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = runs_dev(fleet_file(here, "above"), fleet="above")
    monkeypatch.setenv("MESH_CREDENTIALS", str(keys / "app.nk"))
    monkeypatch.chdir(fleet_file(here / "below", "another", 'url = "nats://own:4222"'))
    assert find_access(("client",)) == Access("nats://own:4222", "app", keys / "app.nk")


def test_a_dev_that_was_killed_is_not_believed(here: Path) -> None:
    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(ended, 0)
    runs_dev(here, pid=ended)
    assert running_dev(here) is None
    with pytest.raises(NoCredentials, match="MESH_CREDENTIALS"):
        find_access(("client",))


@pytest.mark.parametrize("how", ["another owner", "others may write"])
def test_a_dev_file_that_somebody_else_can_have_written_is_not_obeyed(
    here: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_dev(here)
    if how == "another owner":
        own = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: own + 1)  # a test cannot give its file away
    else:
        (here / STATE / DEV_FILE).chmod(0o666)
    assert running_dev(here) is None
    with pytest.raises(NoCredentials, match=f"{DEV_FILE} is not obeyed"):
        find_access(("client",))
    monkeypatch.setenv("MESH_NAME", "app")
    monkeypatch.setenv("MESH_CREDENTIALS", str(here / STATE / "keys" / "app.nk"))
    assert find_access(("client",), Flags(name="app", url="nats://x:1")).url == "nats://x:1"


def has_run_dev(directory: Path) -> Path:
    """Make `directory` look as if a `mesh dev` had stopped in it; return the directory of its keys."""
    keys = runs_dev(directory)
    (directory / STATE / DEV_FILE).unlink()
    (directory / STATE / "store").mkdir()
    return keys


@pytest.mark.parametrize("flags", [Flags(), Flags(name="ops")], ids=["by-role", "by-name"])
def test_where_a_dev_has_stopped_that_is_said_and_where(
    here: Path, flags: Flags, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_run_dev(here)
    below = here / "notes"
    below.mkdir()
    for directory in (here, below):
        monkeypatch.chdir(directory)
        with pytest.raises(DevStopped, match=rf"no `mesh dev` runs in {here} any more: start it again"):
            find_access(("viewer",), flags)
    assert status_of(DevStopped.code) == Exit.UNREACHABLE


def test_a_stopped_dev_says_nothing_of_another_bus_nor_of_keys_that_are_named(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = has_run_dev(here)
    with pytest.raises(NoCredentials, match="who is asking"):
        find_access(("client",), Flags(url="nats://elsewhere:4222"))
    monkeypatch.setenv("MESH_CREDENTIALS", str(keys / "app.nk"))
    assert find_access(("client",)) == Access(DEFAULT_URL, "app", keys / "app.nk")


def test_keys_of_a_setup_are_no_stopped_dev(here: Path) -> None:
    has_run_dev(here)
    (here / STATE / "store").rmdir()
    with pytest.raises(NoCredentials, match="who is asking"):
        find_access(("client",))


def test_the_environment_beats_files(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_dev(here)
    (here / "mesh.toml").write_text('url = "nats://in-a-file:4222"\n')
    key = write_key(here / "mine", "billing", new_key())
    monkeypatch.setenv("NATS_URL", "nats://elsewhere:4222")
    monkeypatch.setenv("MESH_CREDENTIALS", str(key))
    assert find_access(("client",)) == Access("nats://elsewhere:4222", "billing", key)
    monkeypatch.setenv("MESH_NAME", "accounts")
    assert find_access(("client",)).name == "accounts"


def test_the_command_line_beats_the_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_dev(here)
    monkeypatch.setenv("NATS_URL", "nats://elsewhere:4222")
    monkeypatch.setenv("MESH_NAME", "audit")
    assert find_access(("client",), Flags(url=DEV_URL, name="ops")).name == "ops"


def test_keys_of_one_bus_are_not_tried_on_another(here: Path) -> None:
    runs_dev(here)
    with pytest.raises(NoCredentials):
        find_access(("client",), Flags(url="nats://elsewhere:4222"))


def test_a_fleet_file_may_say_where_the_bus_is(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_CREDENTIALS", str(write_key(here, "app", new_key())))
    assert find_access(("client",)).url == DEFAULT_URL
    (here / "mesh.toml").write_text('url = "nats://in-a-file:4222"\n')
    assert find_access(("client",)).url == "nats://in-a-file:4222"


def test_a_context_gives_url_and_key(here: Path) -> None:
    key = write_key(here / "keys", "app", new_key())
    has_context(here / "home", "work", url="nats://work:4222", nkey=str(key))
    assert find_access(("client",), Flags(context="work")) == Access("nats://work:4222", "app", key)


@pytest.mark.parametrize("unusable", ["creds", "token", "user"])
def test_a_context_with_anything_but_an_nkey_is_refused(here: Path, unusable: str) -> None:
    has_context(here / "home", "work", **{"url": "nats://work:4222", unusable: "/some/file"})
    with pytest.raises(ContextUnusable, match=unusable):
        find_access(("client",), Flags(context="work"))


def test_a_context_that_is_missing_is_named(here: Path) -> None:
    with pytest.raises(ContextUnusable, match="'nowhere'"):
        find_access(("client",), Flags(context="nowhere"))


def test_a_key_that_is_none_is_no_traceback(here: Path) -> None:
    (here / "app.nk").write_text("hello")
    with pytest.raises(NoCredentials, match="no nkey seed"):
        _ = Access(DEFAULT_URL, "app", here / "app.nk").seed
    with pytest.raises(NoCredentials, match="No such file"):
        _ = Access(DEFAULT_URL, "app", here / "nobody.nk").seed


def test_a_wrong_setting_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_LOG_FORMAT", "purple")
    with pytest.raises(SettingsInvalid, match="MESH_LOG_FORMAT"):
        load_settings()
