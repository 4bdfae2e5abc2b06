"""A bucket as the fleet's store: S3, Google Cloud Storage or Azure, through obstore (extra `artifacts`).

Endpoint, region and credentials are left to obstore, which takes them from the environment like the vendors'
tools. A multipart upload becomes visible when its last part has arrived.
"""

import datetime as dt
import os
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mesh.artifacts.store import CHUNK, Content
from mesh.errors import (
    ArtifactDenied,
    ArtifactMissing,
    StoreExtraMissing,
    StoreUnreachable,
    StoreUnusable,
)

if TYPE_CHECKING:
    from obstore.store import RetryConfig

_PART = 8 << 20
"""Size of an upload's part; smaller objects take a single request."""
_MOST_PARTS = 9_000
"""S3 takes 10,000 (docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html)."""
_AT_ONCE = 2
"""Concurrent parts: a save needs about this many parts of memory."""
_RETRY: "RetryConfig" = {
    "max_retries": 3,
    "retry_timeout": dt.timedelta(seconds=30),
    "backoff": {"init_backoff": dt.timedelta(milliseconds=100), "max_backoff": dt.timedelta(seconds=2)},
}
"""Fewer retries than obstore's own (ten in three minutes), since the guard retries a turn anyway."""
_CLIENT = {
    "timeout": "6h",  # of one request, its whole body included
    "read_timeout": "30s",
    "connect_timeout": "5s",
}
VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""By kind of bucket: prefixes of the environment variables that obstore reads."""
_OF_CLIENT = (*_CLIENT, "allow_http", "allow_invalid_certificates", "proxy_url", "proxy_ca_certificate")
"""Settings that obstore no longer reads from the environment once any of them is passed."""
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_STATUS = re.compile(r"status code: (\d{3} [A-Za-z ]{1,40})")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_METADATA = ("169.254.169.254", "metadata.google.internal", "169.254.170.2")
"""Addresses at which a cloud's machine gets its credentials. Elsewhere there is no answer."""


def _client_options(url: str) -> Any:
    prefix = VARIABLES[url.partition(":")[0]]
    said = {name: os.environ.get(prefix + name.upper()) for name in _OF_CLIENT}
    return _CLIENT | {name: value for name, value in said.items() if value}


class Bucket:
    """Objects below a URL such as `s3://bucket/prefix`. Raises StoreExtraMissing, StoreUnusable."""

    def __init__(self, url: str) -> None:
        self.url = url
        if url.partition(":")[0] not in VARIABLES:
            kinds = ", ".join(f"{kind}://…" for kind in VARIABLES)
            raise StoreUnusable(f"{self} is none: a store is a folder, or a bucket at {kinds}")
        try:
            import obstore
            from obstore import exceptions
            from obstore.store import from_url
        except ImportError:
            raise StoreExtraMissing(f"{self}: install handoff-mesh[artifacts] where agents run") from None
        self._obstore, self._errors = obstore, exceptions
        try:
            self._store: Any = from_url(url, retry_config=_RETRY, client_options=_client_options(url))
        except (exceptions.BaseError, ValueError) as wrong:
            said = str(wrong).partition("\n")[0]
            raise StoreUnusable(f"{self} cannot be opened with this environment: {said}") from None

    def __str__(self) -> str:
        return f"the store {self.url}"

    async def put(self, key: str, content: Content) -> None:
        """Store a complete object. Raises ArtifactDenied, StoreUnreachable, StoreUnusable."""
        if await self._holds(key, content.size):
            return
        with self._named("write"):
            if content.size <= _PART:
                await self._obstore.put_async(self._store, key, b"".join(content.chunks()))
            else:
                part = max(_PART, content.size // _MOST_PARTS)
                chunks = content.chunks()
                await self._obstore.put_async(
                    self._store, key, chunks, chunk_size=part, max_concurrency=_AT_ONCE
                )

    async def replace(self, key: str, data: bytes) -> None:
        """Store a small object, in place of an older one. Raises as `put`."""
        with self._named("write"):
            await self._obstore.put_async(self._store, key, data)

    async def _holds(self, key: str, size: int) -> bool:
        """Return True if an object of this name and size exists; False if that is unknown."""
        try:
            found = await self._obstore.head_async(self._store, key)
        except (FileNotFoundError, self._errors.PermissionDeniedError):
            return False
        except self._errors.BaseError as wrong:
            raise self._as_ours(wrong, "reach") from None
        return int(found["size"]) == size

    async def chunks(self, key: str) -> AsyncGenerator[bytes, None]:
        """Yield an object's bytes.

        Raises ArtifactMissing, ArtifactDenied, StoreUnreachable, StoreUnusable.
        """
        with self._named("read", key):
            found = await self._obstore.get_async(self._store, key)
            async for chunk in found.stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    async def probe(self) -> None:
        """Check that the store accepts these credentials. Raises as `chunks`."""
        with self._named("read"):
            try:
                await self._obstore.get_async(self._store, "sha256/probe")  # a head would not name what lacks
            except FileNotFoundError as missing:
                if not _no_bucket(str(missing)):
                    return
                raise

    @contextmanager
    def _named(self, verb: str, key: str = "") -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, self._errors.BaseError) as wrong:
            raise self._as_ours(wrong, verb, key) from None  # its text may name keys

    def _as_ours(self, wrong: Exception, verb: str, key: str = "") -> Exception:
        """Convert an error of obstore to ours, with what to do and the store's short code."""
        text = str(wrong)
        short = _CODE.search(text) or _STATUS.search(text)
        code = f" ({short[1].strip()})" if short else ""
        if isinstance(wrong, FileNotFoundError):
            if _no_bucket(text):
                return StoreUnusable(f"{self} does not exist{code}: make it, or change [artifacts]")
            return ArtifactMissing(f"{self} holds no {key}{code}")
        if any(where in text for where in _METADATA):
            return ArtifactDenied(f"{self}: this process has no credentials; set them in its environment")
        refused = (self._errors.PermissionDeniedError, self._errors.UnauthenticatedError)
        if isinstance(wrong, refused):
            hint = "; a missing object is told so, too, if they may not list" if verb == "read" else ""
            return ArtifactDenied(f"{self}: the credentials of this process may not {verb}{code}{hint}")
        return StoreUnreachable(f"{self} could not be reached{code or ': no answer'}")


def _no_bucket(text: str) -> bool:
    return any(said in text for said in _NO_BUCKET)
