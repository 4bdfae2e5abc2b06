"""What is wrong, for programs: problem details (RFC 9457), each with its code and what to do about it."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from mesh.client import SubmitRejected
from mesh.errors import BusError, MeshError

PROBLEM_JSON = "application/problem+json"
TYPES = "urn:handoff-mesh:problem:"
"""How a problem's `type` begins; its code follows."""


class ProblemDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One problem."""

    type: str
    title: str
    status: int
    detail: str
    """What is wrong, with its place."""
    code: str
    """Stable; `title` and `detail` are for people."""
    remedy: str
    """What to do."""


class Problem(Exception):
    """A request that the gateway does not do."""

    def __init__(self, status: int, code: str, detail: str, remedy: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.remedy = status, code, detail, remedy
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @property
    def document(self) -> ProblemDocument:
        return ProblemDocument(
            type=f"{TYPES}{self.code}",
            title=_TITLES.get(self.status, "It was not done"),
            status=self.status,
            detail=self.detail,
            code=self.code,
            remedy=self.remedy,
        )

    def response(self) -> Response:
        body = msgspec.json.encode(self.document)
        return Response(body, self.status, {"cache-control": "no-store", **self.headers}, PROBLEM_JSON)


_TITLES: Mapping[int, str] = {
    400: "The request cannot be read",
    401: "A token is missing or unknown",
    403: "This is not allowed",
    404: "There is nothing here",
    405: "This method is not known here",
    409: "It cannot be done now",
    413: "The body is too large",
    415: "The body is of another type",
    422: "The content is refused",
    429: "There are too many",
    500: "The gateway is broken here",
    503: "The mesh cannot be reached",
}

_MEND = "correct the body, and send it again"
_AGAIN = "send the same again, with the same Idempotency-Key: what was stored is not stored twice"
_KNOWN: Mapping[str, tuple[int, str]] = {
    "bus.stream_full": (503, "try again later; an operator has to make room"),
    "bus.too_large": (413, "put large data into an artifact, and name it"),
    "client.reply_invalid": (422, "send a value that fits the question's `schema`"),
    "client.reply_unjudged": (422, "send a smaller value"),
    "protocol.malformed": (422, _MEND),
}
"""By an error's code: the status, and what to do."""
_REJECTED: Mapping[str, tuple[int, str]] = {
    "over_quota": (429, "wait until some requests are over, or cancel some"),
    "not_allowed": (403, "an operator has to make this token's client a client of the fleet"),
    "request_exists": (422, "use a new Idempotency-Key for a new request"),
    "stale_id": (409, "use a new Idempotency-Key"),
}
"""By the guard's reason: the same."""


def problem_of(error: MeshError) -> Problem:
    """Return the problem that an error of the mesh is for a caller."""
    if isinstance(error, SubmitRejected):
        status, remedy = _REJECTED.get(error.reason, (422, _MEND))
        wait = {"retry_after": "10"} if status == 429 else {}
        return Problem(status, f"rejected.{error.reason}", error.detail, remedy, **wait)
    if error.code in _KNOWN:
        status, remedy = _KNOWN[error.code]
        return Problem(status, error.code, str(error), remedy)
    if isinstance(error, BusError):
        return Problem(503, error.code, "the mesh does not answer now", _AGAIN, retry_after="1")
    return Problem(500, error.code, "the gateway cannot do this", "tell its operator; its log says more")
