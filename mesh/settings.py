"""Settings: where the bus is, who we are and where our key lies.

One order holds for each of them: what a command line says, then the environment, then files. The files
are `.mesh/dev.json`, which a running `mesh dev` writes, and `url` in `mesh.toml`. Secrets are only ever
named by their path here.
"""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import msgspec

from mesh.bus.credentials import NO_FILES, SEED_SUFFIX, TlsFiles, read_key, seed_file
from mesh.errors import MeshError
from mesh.fleet import FILE_NAME

if TYPE_CHECKING:
    from mesh.bus.connection import Bus

DEFAULT_URL = "nats://127.0.0.1:4222"
STATE = ".mesh"
"""Directory of what `mesh dev` keeps: keys, store, logs."""
DEV_FILE = "dev.json"
_DEV_KEPT = ("keys", "store")
"""What a `mesh dev` that has stopped leaves there; `mesh setup` makes keys alone."""

LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]


class SettingsInvalid(MeshError):
    """A setting cannot be used; the text names it and its source."""

    code: ClassVar[str] = "settings.invalid"


class NoCredentials(MeshError):
    """Nothing says who we are, or no key of ours was found; the text says what would."""

    code: ClassVar[str] = "settings.no_credentials"


class DevStopped(NoCredentials):
    """Nothing says who we are where a `mesh dev` would have said it, and it runs no more."""

    code: ClassVar[str] = "bus.unreachable"  # which it is to a script: later there may be one


class ContextUnusable(MeshError):
    """A context of the nats command line that is missing or cannot be used here."""

    code: ClassVar[str] = "settings.context"


class Settings(NamedTuple):
    """The environment: NATS_URL, and MESH_ with each other field's name. What is empty is not said."""

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


class Dev(msgspec.Struct, frozen=True, kw_only=True):
    """What a running `mesh dev` says of itself in `.mesh/dev.json`."""

    pid: int
    url: str
    monitor: str = ""
    """Where the server's monitoring answers."""
    keys: Path
    """Directory of everybody's seeds."""
    clients: tuple[str, ...] = ()
    viewers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return it as it is written to the file."""
        return msgspec.json.format(msgspec.json.encode(self, enc_hook=str), indent=2) + b"\n"

    @classmethod
    def decode(cls, body: bytes) -> "Dev":
        """Return what a file says. Raises msgspec.MsgspecError."""
        return msgspec.json.decode(body, type=cls, dec_hook=lambda kind, value: kind(value))

    def first(self, role: str) -> str | None:
        """Return the first name of a role: `client`, `viewer`, `operator`, `admin` or `guard`."""
        if role in ("admin", "guard"):
            return role
        named: tuple[str, ...] = getattr(self, f"{role}s", ())
        return named[0] if named else None


class Context(NamedTuple):
    """What a context of the nats command line says."""

    url: str | None
    nkey: Path | None
    tls: TlsFiles = NO_FILES


class Access(NamedTuple):
    """How to get on the bus."""

    url: str
    name: str
    credentials: Path
    tls: TlsFiles = NO_FILES

    async def connect(self, *, wait: bool = False) -> "Bus":
        """Return a connection, waited for if `wait`.

        Raises NoCredentials, and as `mesh.bus.connection.connect`.
        """
        from mesh.bus.connection import connect

        return await connect(self.url, name=self.name, seed=self.seed, wait=wait, tls=self.tls)

    @property
    def seed(self) -> str:
        """The nkey seed. Raises NoCredentials."""
        try:
            return read_key(self.credentials).seed
        except OSError as missing:
            raise NoCredentials(f"{self.credentials}: {missing.strerror}") from missing
        except ValueError as wrong:
            raise NoCredentials(str(wrong)) from wrong


class Flags(NamedTuple):
    """What a command line said about it."""

    url: str | None = None
    context: str | None = None
    name: str | None = None
    tls: TlsFiles = NO_FILES


NO_FLAGS = Flags()


_ALLOWED = {"log_format": get_args(LogFormat), "log_level": get_args(LogLevel)}
_PATHS = ("credentials", "tls_ca", "tls_cert", "tls_key")


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Return what the environment says. Raises SettingsInvalid."""
    said: dict[str, Any] = {}
    for field in Settings._fields:
        variable = "NATS_URL" if field == "url" else f"MESH_{field.upper()}"
        value = environ.get(variable, "")
        allowed = _ALLOWED.get(field, (value,))
        if value and value not in allowed:
            raise SettingsInvalid(f"the environment: {variable}: {value!r} is none of {', '.join(allowed)}")
        if value:
            said[field] = Path(value) if field in _PATHS else value
    return Settings(**said)


def running_dev(here: Path) -> Dev | None:
    """Return the `mesh dev` that runs in `here` or a directory above it; None if none does.

    What somebody else could have written is not obeyed: in a folder that others may write to, such as /tmp,
    it would lead to their server.
    """
    for directory in (here, *here.parents):
        path = directory / STATE / DEV_FILE
        if path.is_file() and not _is_strangers(path):
            try:
                dev = Dev.decode(path.read_bytes())
            except msgspec.MsgspecError:
                return None
            return dev if _is_alive(dev.pid) else None  # one that was killed leaves its file behind
    return None


def _is_strangers(path: Path) -> bool:
    """Return True if another user owns a file, or may write to it."""
    found = path.stat()
    return found.st_uid != os.getuid() or bool(found.st_mode & 0o022)


def _left_by_dev(here: Path) -> Path | None:
    """Return where a `mesh dev` has run, in `here` or a directory above it; None if none has."""
    for directory in (here, *here.parents):
        if all((directory / STATE / each).is_dir() for each in _DEV_KEPT):
            return directory
    return None


def _strangers_dev(here: Path) -> Path | None:
    """Return the file of a `mesh dev` that was passed over, in `here` or above it; None if none was."""
    paths = (directory / STATE / DEV_FILE for directory in (here, *here.parents))
    return next((path for path in paths if path.is_file() and _is_strangers(path)), None)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def read_context(name: str, environ: Mapping[str, str] = os.environ) -> Context:
    """Return a context that the nats command line saved. Raises ContextUnusable."""
    home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".config")
    path = home / "nats" / "context" / f"{name}.json"
    try:
        said: dict[str, Any] = json.loads(path.read_bytes())
    except OSError as missing:
        raise ContextUnusable(f"context {name!r}: {missing.strerror}: {path}") from missing
    except ValueError as wrong:
        raise ContextUnusable(f"context {name!r} is not JSON: {path}") from wrong
    for unusable in ("creds", "token", "user", "nsc"):
        if said.get(unusable):
            raise ContextUnusable(f"context {name!r} uses `{unusable}`; only nkeys are known here")
    files = {name: Path(said[name]).expanduser() if said.get(name) else None for name in TlsFiles._fields}
    nkey = said.get("nkey")
    return Context(said.get("url") or None, Path(nkey).expanduser() if nkey else None, TlsFiles(**files))


def find_url(flags: Flags, settings: Settings, dev: Dev | None, here: Path) -> str | None:
    """Return where anything says that the bus is; None when nothing does."""
    context = read_context(flags.context) if flags.context else None
    return (
        flags.url
        or (context.url if context else None)
        or settings.url
        or (dev.url if dev else None)
        or _url_in_fleet_file(here / FILE_NAME)
    )


def _url_in_fleet_file(path: Path) -> str | None:
    try:
        found = tomllib.loads(path.read_text()).get("url")
    except (OSError, tomllib.TOMLDecodeError):
        return None
    return found if isinstance(found, str) else None


def find_tls(url: str, flags: Flags, settings: Settings, here: Path) -> TlsFiles:
    """Return the files that anything names for TLS, each by the first that does.

    Those in the fleet file go with the URL in it. Raises SettingsInvalid, ContextUnusable.
    """
    environment = TlsFiles(settings.tls_ca, settings.tls_cert, settings.tls_key)
    context = read_context(flags.context).tls if flags.context else NO_FILES
    file = here / FILE_NAME
    beside = _tls_in_fleet_file(file) if _url_in_fleet_file(file) == url else NO_FILES
    sources = (flags.tls, context, environment, beside)
    return TlsFiles(*(next(filter(None, each), None) for each in zip(*sources, strict=True)))


def _tls_in_fleet_file(path: Path) -> TlsFiles:
    """Return what `[bus.tls]` says; its files lie beside the fleet file unless their path is whole."""
    try:
        bus = tomllib.loads(path.read_text()).get("bus", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return NO_FILES
    if not bus:
        return NO_FILES
    from pydantic import ValidationError

    from mesh.fleet.file import BusSection

    try:
        said = BusSection.model_validate(bus).tls
    except ValidationError as wrong:
        raise SettingsInvalid(f"{path}: [bus.tls] names files: ca, cert and key") from wrong
    named = (said.ca, said.cert, said.key)
    return TlsFiles(*(None if each is None else path.parent / each for each in named))


def find_access(
    roles: tuple[str, ...],
    flags: Flags = NO_FLAGS,
    *,
    settings: Settings | None = None,
    here: Path | None = None,
) -> Access:
    """Return how to get on the bus for a command that one of `roles` may give, the best first.

    Raises NoCredentials, DevStopped among them, ContextUnusable and SettingsInvalid.
    """
    settings = settings or load_settings()
    here = here or Path.cwd()
    dev = running_dev(here)
    said = find_url(flags, settings, dev, here)
    try:
        access = _found_access(roles, flags, settings, dev, said or DEFAULT_URL)
    except NoCredentials as missing:
        folder = _left_by_dev(here) if dev is None and said is None else None
        if folder is None:
            strangers = _strangers_dev(here)
            if dev is None and strangers is not None:
                text = f"{missing}; {strangers} is not obeyed, since another user owns it or may write to it"
                raise NoCredentials(text) from None
            raise
        raise DevStopped(
            f"no `mesh dev` runs in {folder} any more: start it again there, "
            "or name another bus (NATS_URL) and a key for it (MESH_CREDENTIALS)"
        ) from missing
    is_dev = dev is not None and dev.url == access.url  # which listens on loopback, without TLS
    return access if is_dev else access._replace(tls=find_tls(access.url, flags, settings, here))


def _found_access(
    roles: tuple[str, ...], flags: Flags, settings: Settings, dev: Dev | None, url: str
) -> Access:
    if dev is not None and dev.url != url:
        dev = None  # its keys open another bus
    context = read_context(flags.context) if flags.context else None
    keys = tuple(_given_keys(context, settings))
    if flags.name is not None:
        return Access(url, flags.name, _key_of(flags.name, keys, dev))
    if keys:
        name, path = keys[0]
        return Access(url, name, path)
    if settings.name is not None:
        return Access(url, settings.name, _key_of(settings.name, keys, dev))
    for role in roles:
        name_ = dev.first(role) if dev is not None else None
        if dev is not None and name_ is not None and seed_file(dev.keys, name_).exists():
            return Access(url, name_, seed_file(dev.keys, name_))
    wanted = " or ".join(roles)
    raise NoCredentials(
        f"who is asking? Set MESH_CREDENTIALS to the {SEED_SUFFIX} file of {_article(wanted)} {wanted} "
        "(and MESH_NAME, unless the file is called after it), or run this where `mesh dev` runs"
    )


def _given_keys(context: Context | None, settings: Settings) -> Iterator[tuple[str, Path]]:
    """Yield the keys that a context and the environment name, with whose they are: else the file's name."""
    if context is not None and context.nkey is not None:
        yield context.nkey.stem, context.nkey
    if settings.credentials is not None:
        yield settings.name or settings.credentials.stem, settings.credentials


def _key_of(name: str, keys: tuple[tuple[str, Path], ...], dev: Dev | None) -> Path:
    """Return the seed of `name`: one that was given as its own, or one that `mesh dev` keeps."""
    for whose, path in keys:
        if whose == name:
            return path
    if dev is not None and seed_file(dev.keys, name).exists():
        return seed_file(dev.keys, name)
    raise NoCredentials(
        f"no key of {name!r}: set MESH_NAME={name} and MESH_CREDENTIALS to its {SEED_SUFFIX} file"
    )


def _article(word: str) -> str:
    return "an" if word[:1] in "aeiou" else "a"
