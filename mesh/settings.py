"""Settings: the bus's address, our name and our key.

The order is the same for each of them: the command line, then the environment, then files. The files are
`.mesh/dev.json`, which a running `mesh dev` writes, and `url` in `mesh.toml`. Secrets are only ever named by
their path here.
"""

import json
import os
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec

from mesh.bus.credentials import NO_FILES, SEED_SUFFIX, RenewableKey, TlsFiles, read_key, seed_file
from mesh.errors import AuthenticationFailed, MeshError
from protocol.wire.commands import MAX_VERSION_CHARS

if TYPE_CHECKING:
    from mesh.bus.connection import Bus

DEFAULT_URL = "nats://127.0.0.1:4222"
FILE_NAME = "mesh.toml"
STATE = ".mesh"
"""Directory of what `mesh dev` keeps: keys, store, logs."""
DEV_FILE = "dev.json"
ARTIFACTS = f"{STATE}/artifacts"
"""Folder of artifacts, next to the fleet file, unless it names another store."""
_DEV_KEPT = ("keys", "store")
"""Folders that a stopped `mesh dev` leaves there; `mesh setup` makes only keys."""

LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]


def own_build() -> str:
    """Return the build of this process's code, from `MESH_BUILD`; empty if it is not set."""
    return " ".join(os.environ.get("MESH_BUILD", "").split())[:MAX_VERSION_CHARS]


class SettingsInvalid(MeshError, code="settings.invalid"):
    """A setting cannot be used; the text names it and its source."""


class NoCredentials(MeshError, code="settings.no_credentials"):
    """Our name or key was not found; the text tells what to set."""


class DevStopped(NoCredentials, code="bus.unreachable"):  # which it is to a script: later there may be one
    """A `mesh dev` would have given us credentials, and it has stopped."""


class AnotherFleet(MeshError, code="settings.another_fleet"):
    """The `mesh dev` that runs here or above serves another fleet than the one of this folder."""


class ContextUnusable(MeshError, code="settings.context"):
    """A context of the nats command line is missing or cannot be used here."""


class Settings(NamedTuple):
    """The environment: NATS_URL, and MESH_ with each other field's name. Empty ones count as missing."""

    url: str | None = None
    name: str | None = None
    credentials: Path | None = None
    health: str | None = None
    """HOST:PORT on which services answer probes."""
    log_format: LogFormat = "auto"
    log_level: LogLevel | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    artifacts: str | None = None
    """The store of artifacts: a URL or a folder's path."""


class Dev(msgspec.Struct, frozen=True, kw_only=True):
    """How a running `mesh dev` describes itself in `.mesh/dev.json`."""

    fleet: str = ""
    """Name of the fleet that it serves."""
    folder: Path = Path()
    """Where it was started."""
    page: str = ""
    """The page's address, with its token."""
    pid: int
    url: str
    monitor: str = ""
    """Address of the server's monitoring."""
    keys: Path
    """Directory of all members' seeds."""
    clients: tuple[str, ...] = ()
    viewers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    artifacts: str = ""
    """Its store of artifacts."""

    def encode(self) -> bytes:
        """Return it as it is written to the file."""
        return msgspec.json.format(msgspec.json.encode(self, enc_hook=str), indent=2) + b"\n"

    @classmethod
    def decode(cls, body: bytes) -> "Dev":
        """Return the content of a file. Raises msgspec.MsgspecError."""
        return msgspec.json.decode(body, type=cls, dec_hook=lambda kind, value: kind(value))

    def first(self, role: str) -> str | None:
        """Return the first name of a role: `client`, `viewer`, `operator`, `admin` or `guard`."""
        if role in ("admin", "guard"):
            return role
        named: tuple[str, ...] = getattr(self, f"{role}s", ())
        return named[0] if named else None


class Context(NamedTuple):
    """A context of the nats command line."""

    url: str | None = None
    nkey: Path | None = None
    tls: TlsFiles = NO_FILES


class Access(NamedTuple):
    """How to reach the bus."""

    url: str
    name: str
    credentials: Path
    tls: TlsFiles = NO_FILES

    async def connect(self, *, wait: bool = False, lasts: bool = False) -> "Bus":
        """Return a connection.

        Args:
            wait: wait for the bus.
            lasts: take the key from its file again whenever it connects, for a process that outlives it.

        Raises NoCredentials, and as `mesh.bus.connection.connect`.
        """
        from mesh.bus.connection import connect

        with self.named_in_errors():
            seed = RenewableKey(lambda: self.seed) if lasts else self.seed
            return await connect(self.url, name=self.name, seed=seed, wait=wait, tls=self.tls)

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Let AuthenticationFailed in the block name whose key was refused, and its file."""
        try:
            yield
        except AuthenticationFailed as unknown:
            raise AuthenticationFailed(
                f"{unknown}: the key of {self.name} in {self.credentials}; was it replaced (`mesh key ls` "
                "shows the valid one), has the server to be reloaded, or is its fleet file another one?"
            ) from None

    @property
    def seed(self) -> str:
        """The nkey seed, with its claim if it has one. Raises NoCredentials."""
        try:
            return read_key(self.credentials).credential
        except OSError as missing:
            raise NoCredentials(f"{self.credentials}: {missing.strerror}") from missing
        except ValueError as wrong:
            raise NoCredentials(str(wrong)) from wrong


class Flags(NamedTuple):
    """The options of a command line."""

    url: str | None = None
    context: str | None = None
    name: str | None = None
    tls: TlsFiles = NO_FILES


NO_FLAGS = Flags()
_ALLOWED = {"log_format": get_args(LogFormat), "log_level": get_args(LogLevel)}
_PATHS = ("credentials", "tls_ca", "tls_cert", "tls_key")


def load_settings() -> Settings:
    """Return the settings in the environment. Raises SettingsInvalid."""
    fields: dict[str, Any] = {}
    for field in Settings._fields:
        variable = "NATS_URL" if field == "url" else f"MESH_{field.upper()}"
        value = os.environ.get(variable, "")
        allowed = _ALLOWED.get(field, (value,))
        if value and value not in allowed:
            raise SettingsInvalid(f"the environment: {variable}: {value!r} is none of {', '.join(allowed)}")
        if value:
            fields[field] = Path(value) if field in _PATHS else value
    return Settings(**fields)


def running_dev(here: Path) -> Dev | None:
    """Return the `mesh dev` that runs in this project; None if none does. See `project_of`."""
    return _running(project_of(here))


def project_of(here: Path) -> tuple[Path, ...]:
    """Return `here` and the directories above it, up to the nearest fleet file.

    Above that is another project, whose `mesh dev` serves another fleet.
    """
    folders = (here, *here.parents)
    return next((folders[: n + 1] for n, each in enumerate(folders) if (each / FILE_NAME).is_file()), folders)


def _running(folders: Sequence[Path]) -> Dev | None:
    """Return the `mesh dev` that runs in the first folder that has one.

    A file that another user could have written is ignored: in a folder such as /tmp it would lead to that
    user's server.
    """
    for path in _dev_files(folders):
        if not _is_foreign(path):
            try:
                dev = Dev.decode(path.read_bytes())
            except (OSError, msgspec.MsgspecError):
                return None
            return dev if _is_alive(dev.pid) else None  # a killed one leaves its file behind
    return None


def _dev_files(folders: Sequence[Path]) -> Iterator[Path]:
    paths = (directory / STATE / DEV_FILE for directory in folders)
    return (path for path in paths if path.is_file())


def _is_foreign(path: Path) -> bool:
    """Return True if another user owns a file, or may write to it."""
    found = path.stat()
    return found.st_uid != os.getuid() or bool(found.st_mode & 0o022)


def index_folder(here: Path) -> Path:
    """Return the folder that keeps indexes of requests: a project's own, else one in the user's cache."""
    for folder in project_of(here):
        if (folder / STATE).is_dir() and not _is_foreign(folder / STATE):
            return folder / STATE
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~").expanduser() / ".cache")
    return home / "handoff-mesh"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read_context(name: str) -> Context:
    """Return a context that the nats command line saved. Raises ContextUnusable."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~").expanduser() / ".config")
    path = home / "nats" / "context" / f"{name}.json"
    try:
        fields: dict[str, Any] = json.loads(path.read_bytes())
    except OSError as missing:
        raise ContextUnusable(f"context {name!r}: {missing.strerror}: {path}") from missing
    except ValueError as wrong:
        raise ContextUnusable(f"context {name!r} is not JSON: {path}") from wrong
    for unusable in ("creds", "token", "user", "nsc"):
        if fields.get(unusable):
            raise ContextUnusable(f"context {name!r} uses `{unusable}`; only nkeys are known here")
    files = {name: Path(fields[name]).expanduser() if fields.get(name) else None for name in TlsFiles._fields}
    nkey = fields.get("nkey")
    return Context(fields.get("url") or None, Path(nkey).expanduser() if nkey else None, TlsFiles(**files))


def _read_toml(path: Path) -> dict[str, Any]:
    """Return a fleet file; empty if it cannot be read: commands that need it report its mistakes."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


class Sources:
    """All sources of how to reach the bus, each read once. Raises SettingsInvalid, ContextUnusable."""

    def __init__(self, flags: Flags = NO_FLAGS) -> None:
        self._flags = flags
        self._settings = load_settings()
        self._here = Path.cwd()
        self._project = project_of(self._here)
        self._dev = _running(self._project)
        self._context = _read_context(flags.context) if flags.context else Context()
        self._file = _read_toml(self._here / FILE_NAME)

    @property
    def artifacts(self) -> str:
        """The store of artifacts: a URL, or a folder's whole path. Raises SettingsInvalid."""
        named = self._settings.artifacts or (self._own_dev.artifacts if self._own_dev else "")
        if named:
            return store_in(named, self._here)
        section = self._file.get("artifacts", {})
        store = section.get("store", "") if isinstance(section, dict) else None
        if not isinstance(store, str):
            raise SettingsInvalid(f"{self._here / FILE_NAME}: [artifacts] says store = a URL or a folder")
        return store_in(store, self._here)

    @property
    def url(self) -> str | None:
        """The bus's URL; None if no source names it. Raises AnotherFleet."""
        if named := self._flags.url or self._context.url or self._settings.url:
            return named
        return self._own_dev.url if self._own_dev else self._url_in_file

    @property
    def _own_dev(self) -> Dev | None:
        """The `mesh dev` that serves this project's fleet; None if none runs. Raises AnotherFleet."""
        if self._dev is not None and self._dev.fleet not in ("", self._fleet or self._dev.fleet):
            raise self._another_fleet(self._dev)
        return self._dev

    @property
    def _fleet(self) -> str:
        """The name in the project's fleet file; empty if there is none."""
        name = _read_toml(self._project[-1] / FILE_NAME).get("name")
        return name if isinstance(name, str) else ""

    def _another_fleet(self, dev: Dev) -> AnotherFleet:
        project = self._project[-1]
        return AnotherFleet(
            f"the `mesh dev` that runs in {dev.folder} serves the fleet {dev.fleet!r}, and "
            f"{project / FILE_NAME} is the fleet {self._fleet!r}: start `mesh dev` for it in {project}, "
            f"or name the bus that you mean (--url {dev.url})"
        )

    @property
    def _url_in_file(self) -> str | None:
        found = self._file.get("url")
        return found if isinstance(found, str) else None

    def tls(self, url: str) -> TlsFiles:
        """Return the TLS files for `url`, each from the first source that names it.

        Those in the fleet file belong to the URL in it. Raises SettingsInvalid.
        """
        settings = self._settings
        environment = TlsFiles(settings.tls_ca, settings.tls_cert, settings.tls_key)
        beside = self._tls_in_file() if self._url_in_file == url else NO_FILES
        sources = (self._flags.tls, self._context.tls, environment, beside)
        return TlsFiles(*(next(filter(None, each), None) for each in zip(*sources, strict=True)))

    def _tls_in_file(self) -> TlsFiles:
        """Return the files of `[bus.tls]`, relative to the fleet file unless their path is absolute."""
        try:  # `mesh.fleet.file` checks it, too; a client has no need to load that
            table = msgspec.convert(self._file.get("bus", {}), dict[Literal["tls"], dict[str, str]])
            return TlsFiles(**{name: self._here / path for name, path in table.get("tls", {}).items()})
        except (msgspec.ValidationError, TypeError) as wrong:
            raise SettingsInvalid(
                f"{self._here / FILE_NAME}: [bus.tls] names files: ca, cert and key"
            ) from wrong

    def access(self, roles: tuple[str, ...]) -> Access:
        """Return how to reach the bus as one of `roles`, the best first.

        Raises NoCredentials including DevStopped, AnotherFleet and SettingsInvalid.
        """
        url = self.url or DEFAULT_URL
        dev = self._dev if self._dev is not None and self._dev.url == url else None  # its keys fit no other
        keys = tuple(self._given_keys())
        name = self._flags.name
        if name is None and keys:
            name = keys[0][0]
        if name is None:
            name = self._settings.name
        if name is None and dev is not None:
            first = (dev.first(role) for role in roles)
            name = next((each for each in first if each and seed_file(dev.keys, each).exists()), None)
        if name is None:
            raise self._no_credentials(roles)
        # A server of `mesh dev` listens on loopback, without TLS.
        return Access(url, name, self._key_of(name, keys, dev), NO_FILES if dev else self.tls(url))

    def _given_keys(self) -> Iterator[tuple[str, Path]]:
        """Yield the keys that a context and the environment name, each with its name or the file's."""
        if self._context.nkey is not None:
            yield self._context.nkey.stem, self._context.nkey
        if self._settings.credentials is not None:
            yield self._settings.name or self._settings.credentials.stem, self._settings.credentials

    def _key_of(self, name: str, keys: tuple[tuple[str, Path], ...], dev: Dev | None) -> Path:
        """Return the seed of `name`: a key that was given as its own, or one that `mesh dev` keeps."""
        given = [path for owner, path in keys if owner == name]
        if given:
            return given[0]
        if dev is not None and seed_file(dev.keys, name).exists():
            return seed_file(dev.keys, name)
        text = f"no key of {name!r}: set MESH_NAME={name} and MESH_CREDENTIALS to its {SEED_SUFFIX} file"
        raise self._without_dev(text)

    def _no_credentials(self, roles: tuple[str, ...]) -> NoCredentials | AnotherFleet:
        wanted = " or ".join(roles)
        article = "an" if wanted[:1] in "aeiou" else "a"
        return self._without_dev(
            f"who is asking? Set MESH_CREDENTIALS to the {SEED_SUFFIX} file of {article} {wanted} "
            "(and MESH_NAME, unless the file is called after it), or run this where `mesh dev` runs"
        )

    def _without_dev(self, text: str) -> NoCredentials | AnotherFleet:
        """Return the error with this `text`, and why no `mesh dev` helps where one might."""
        if self._dev is None and self.url is None:
            beyond = _running(self._project[-1].parents)
            if beyond is not None and beyond.fleet:
                return self._another_fleet(beyond)
        left = (each for each in self._project if all((each / STATE / kept).is_dir() for kept in _DEV_KEPT))
        if self._dev is None and self.url is None and (folder := next(left, None)) is not None:
            return DevStopped(
                f"no `mesh dev` runs in {folder} any more: start it again there, "
                "or name another bus (NATS_URL) and a key for it (MESH_CREDENTIALS)"
            )
        strangers = next(filter(_is_foreign, _dev_files(self._project)), None)
        if self._dev is None and strangers is not None:
            text += f"; {strangers} is not obeyed, since another user owns it or may write to it"
        return NoCredentials(text)


def store_in(store: str, folder: Path) -> str:
    """Return a store of artifacts as every process names it: a URL unchanged, or a folder's absolute path.

    Args:
        store: a URL, a path, or empty for a mesh's default folder.
        folder: folder that a path is relative to.
    """
    return store if "://" in store else str((folder / Path(store or ARTIFACTS).expanduser()).absolute())


def find_access(roles: tuple[str, ...], flags: Flags = NO_FLAGS) -> Access:
    """Return how to reach the bus for a command that one of `roles` may give. Raises as `Sources.access`."""
    return Sources(flags).access(roles)
