"""Artifacts: data too large for a handoff, saved under its digest and checked when it is read.

    store = ArtifactStore.from_env()
    scan = await store.save("scan", Path("scan.pdf"), media_type="application/pdf")
    await client.submit("Read this contract", artifacts=[scan])

In a turn these are `turn.save`, `turn.load` and `turn.load_to`.
"""

from mesh.artifacts.store import ArtifactStore
from mesh.errors import (
    ArtifactDenied,
    ArtifactDigestMismatch,
    ArtifactError,
    ArtifactForeign,
    ArtifactMissing,
    ArtifactTooLarge,
    StoreExtraMissing,
    StoreUnreachable,
    StoreUnusable,
)

__all__ = [
    "ArtifactDenied",
    "ArtifactDigestMismatch",
    "ArtifactError",
    "ArtifactForeign",
    "ArtifactMissing",
    "ArtifactStore",
    "ArtifactTooLarge",
    "StoreExtraMissing",
    "StoreUnreachable",
    "StoreUnusable",
]
