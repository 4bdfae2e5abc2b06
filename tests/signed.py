"""A mesh whose server is in operator mode."""

from pathlib import Path

from mesh.bus.accounts import resolver_config
from mesh.bus.roles import ADMIN
from mesh.fleet.operator import sign_accounts
from mesh.testing import EmbeddedBus
from protocol.wire.config import Fleet


class SignedMesh(EmbeddedBus):
    """An `EmbeddedBus` whose server knows members by claims that an operator signed."""

    def __init__(self, fleet: Fleet, directory: Path) -> None:
        super().__init__(fleet, directory)
        signed = sign_accounts(fleet, directory, directory / "keys")
        self.keys = signed.keys
        self.server._accounts = signed.config
        self.server._extra = resolver_config(directory / "store" / "accounts")
        self.server._probe_seed = self.keys[ADMIN].credential
