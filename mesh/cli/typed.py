"""What is typed at a terminal, line by line."""

import asyncio
import contextlib
import os
import termios

_READ_BYTES = 4_096


class Typed:
    """Lines that are typed at a terminal. Waiting for one can be cancelled; a thread's reading could not be.

    Most terminals hand over a line at a time. One that does not may hand over a piece, or several lines.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._left = b""
        """What has come and was not taken as a line."""

    async def line(self) -> str:
        """Return the next line, without its end.

        Raises EOFError when the terminal is gone or its input was ended; what has no end of line is not
        said then. When cancelled, what was typed so far is dropped: it is no reply to another question,
        and no command for the shell.
        """
        try:
            while b"\n" not in self._left:
                part = await self._part()
                if not part:
                    self._left = b""
                    raise EOFError
                self._left += part
        except asyncio.CancelledError:
            self._drop()
            raise
        line, _, self._left = self._left.partition(b"\n")
        return line.decode(errors="replace").removesuffix("\r")

    async def _part(self) -> bytes:
        """Return what comes next; nothing at the end."""
        loop = asyncio.get_running_loop()
        came: asyncio.Future[bytes] = loop.create_future()

        def read() -> None:
            loop.remove_reader(self._terminal)
            try:
                part = os.read(self._terminal, _READ_BYTES)
            except OSError:  # hung up
                part = b""
            if not came.done():
                came.set_result(part)

        loop.add_reader(self._terminal, read)
        try:
            return await came
        finally:
            loop.remove_reader(self._terminal)

    def _drop(self) -> None:
        self._left = b""
        with contextlib.suppress(termios.error):
            termios.tcflush(self._terminal, termios.TCIFLUSH)
