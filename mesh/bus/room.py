"""What the server's store can still promise to streams.

No API call returns that. So a temporary stream asks for it: the server refuses more than it has.
"""

from typing import Self

from mesh.bus.connection import Bus
from mesh.errors import ApiCode, ApiError

_API_S = 30.0
_NAME, _SUBJECT = "ROOM", "mesh.room"


class Room:
    """`async with Room(bus) as room:`. Whatever temporary stream was made is removed at the end of the block.

    Make streams within it. A server whose only stream is deleted removes the folder of all streams a moment
    later, even while it makes the next one in it.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._is_made = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._is_made:
            await self._remove()

    @property
    def is_measurable(self) -> bool:
        """False in a cluster, which spreads streams over its servers."""
        return not self._bus.greeting.get("cluster")

    async def fits(self, size: int) -> bool:
        """Return True if so many bytes can be promised, or nobody can tell. Raises BusError."""
        try:
            await self.check(size)
        except ApiError as error:
            if error.err_code != ApiCode.STORAGE_RESOURCES_EXCEEDED:
                raise
            return False
        return True

    async def check(self, size: int) -> None:
        """Raise ApiError (STORAGE_RESOURCES_EXCEEDED) if so many bytes cannot be promised."""
        if self.is_measurable:
            await self._reserve(size)
            await self._reserve(-1)

    async def _reserve(self, size: int) -> None:
        """Have the temporary stream reserve so many bytes (-1: none); a killed setup may have left it."""
        config = {"name": _NAME, "subjects": [_SUBJECT], "storage": "file", "max_bytes": size}
        try:
            await self._bus.api(f"STREAM.UPDATE.{_NAME}", config, timeout_s=_API_S)
        except ApiError as error:
            if error.err_code != ApiCode.STREAM_NOT_FOUND:
                raise
            await self._bus.api(f"STREAM.CREATE.{_NAME}", config, timeout_s=_API_S)
        self._is_made = True

    async def _remove(self) -> None:
        try:
            await self._bus.api(f"STREAM.DELETE.{_NAME}", timeout_s=_API_S)
        except ApiError as error:
            if error.err_code != ApiCode.STREAM_NOT_FOUND:
                raise
