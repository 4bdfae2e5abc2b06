"""The page: requests, people, agents and the mesh in a browser. It needs the extra `handoff-mesh[ui]`.

    async with serving(keys, Options(allow_write=True)) as address: ...

Everything that it shows and does is the operator's API (`mesh.ops`); here it is drawn, and guarded.
"""

import contextlib
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import ClassVar

from mesh.errors import MeshError
from mesh.ui.options import Keys as Keys
from mesh.ui.options import Options as Options
from mesh.ui.options import keys_in as keys_in

_NEEDED = ("starlette", "uvicorn", "jinja2")


class UiNotInstalled(MeshError):
    """The page's libraries are not installed; the text says how to get them."""

    code: ClassVar[str] = "ui.not_installed"


def require_installed(*needed: str) -> None:
    """Raise UiNotInstalled unless these libraries are there; by default all that the page needs."""
    missing = [name for name in needed or _NEEDED if find_spec(name) is None]
    if missing:
        raise UiNotInstalled(f"the page needs {', '.join(missing)}: pip install 'handoff-mesh[ui]'")


@contextlib.asynccontextmanager
async def serving(keys: Keys, options: Options) -> AsyncIterator[str]:
    """Serve the page while the block runs; give its address.

    Raises UiNotInstalled, UsageWrong for options that would be unsafe, OSError for a port that is taken,
    and as `Access.connect`.
    """
    require_installed()
    from mesh.ui.server import served

    async with served(keys, options) as address:
        yield address
