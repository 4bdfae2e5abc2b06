"""Files for a model: artifacts of its handoff that it is shown as pictures and documents.

A prompt is recorded without their bytes, which their digests pin. They are loaded when the model is asked.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from mesh.agent.turn import Turn
from mesh.model.port import Prompt, PromptFile, PromptWithFiles
from protocol.wire.handoff import Artifact

SHOWN: Final = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
    "application/pdf": (b"%PDF-",),
}
"""The media types that vendors take, and how such bytes begin."""
MOST_FILES: Final = 20
MOST_BYTES: Final = 3 << 20
"""Limit of one file: as base64 it has 4 MiB, and vendors take 5 MB."""
_PICTURES: Final = "image/*"
_OWN: Final = "mesh-artifact:"
"""How the URI of an artifact in the fleet's own store begins. Nothing else is ever read."""


def media_types(sees: Iterable[str]) -> frozenset[str]:
    """Return the media types that an author names; `image/*` stands for all pictures. Raises ValueError."""
    if isinstance(sees, str):
        raise ValueError(f"`sees` is a list of media types: say [{sees!r}]")
    found = set[str]()
    for each in sees:
        if each != _PICTURES and each not in SHOWN:
            raise ValueError(f"no model is shown {each!r}: there are {_PICTURES}, {', '.join(SHOWN)}")
        found |= {kind for kind in SHOWN if kind.startswith("image/")} if each == _PICTURES else {each}
    return frozenset(found)


def files_among(artifacts: Iterable[Artifact], sees: frozenset[str]) -> tuple[PromptFile, ...]:
    """Return the artifacts that a model is shown: in the fleet's store, of these types, and small enough."""
    fitting = [
        PromptFile(each)
        for each in artifacts
        if each.media_type in sees and each.uri.startswith(_OWN) and 0 < (each.size or 0) <= MOST_BYTES
    ]
    return tuple(fitting[:MOST_FILES])


async def with_bytes(turn: Turn, prompt: Prompt) -> Prompt:
    """Return a prompt with the bytes of its files. Raises ArtifactError."""
    if not isinstance(prompt, PromptWithFiles):
        return prompt
    return replace(prompt, files=tuple(await asyncio.gather(*(_loaded(turn, each) for each in prompt.files))))


async def _loaded(turn: Turn, file: PromptFile) -> PromptFile:
    data = await turn.load(file.artifact, max_bytes=MOST_BYTES)
    if not data.startswith(SHOWN[file.artifact.media_type]):  # its giver's mistake, which no vendor takes
        return replace(file, note="its bytes are of another type")
    return replace(file, data=data)
