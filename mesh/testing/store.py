"""A store of artifacts for one test."""

import shutil
import tempfile
import weakref
from functools import cached_property
from pathlib import Path

from mesh.artifacts import ArtifactStore
from mesh.artifacts.folder import Folder


class _TemporaryFolder(Folder):
    """A folder that is made at the first look, and gone with its last user."""

    def __init__(self) -> None:
        """Make nothing yet: few tests save anything."""

    @cached_property
    def root(self) -> Path:  # type: ignore[override]  # a folder is told its root
        made = tempfile.mkdtemp(prefix="mesh-artifacts-")
        weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return Path(made)


class TemporaryStore(ArtifactStore):
    """The store of a mesh, in a temporary folder that goes with it."""

    def __init__(self) -> None:
        super().__init__(_TemporaryFolder())
