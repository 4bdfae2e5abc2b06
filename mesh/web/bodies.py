"""Reading the body of a request, up to a limit."""

from starlette.types import Receive


class BodyTooLarge(Exception):
    """The body is larger than allowed."""


class BodyCutShort(Exception):
    """The client went away before it had sent the whole body."""


async def read_body(receive: Receive, most: int) -> bytes:
    """Return a body of at most `most` bytes. Raises BodyTooLarge, BodyCutShort."""
    parts, size, more = list[bytes](), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BodyCutShort
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
        size += len(parts[-1])
        if size > most:
            raise BodyTooLarge
    return b"".join(parts)
