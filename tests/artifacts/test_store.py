"""Saving and loading, in a folder and in a bucket: what is read is what was saved, or an error."""

import hashlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import obstore
import pytest
from obstore.store import from_url

from mesh.artifacts import (
    ArtifactDigestMismatch,
    ArtifactForeign,
    ArtifactMissing,
    ArtifactStore,
    ArtifactTooLarge,
    StoreUnusable,
)
from mesh.artifacts.store import content_of
from protocol.wire.handoff import Artifact
from tests.artifacts.saver_process import MIB
from tests.servers import child

WHOLE = bytes(range(256)) * 80_000
"""Larger than a part of an upload."""


async def in_chunks(data: bytes, size: int = 700_001) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def test_bytes_a_file_and_a_stream_of_the_same_bytes_are_one_object(where: str, tmp_path: Path) -> None:
    store, file = ArtifactStore.at(where), tmp_path / "report.bin"
    file.write_bytes(WHOLE)
    digest = hashlib.sha256(WHOLE).hexdigest()
    saved = [
        await store.save("report", data, media_type="application/pdf", labels=["pii"])
        for data in (WHOLE, file, in_chunks(WHOLE))
    ]
    assert (
        saved
        == [
            Artifact(
                name="report",
                uri=f"mesh-artifact:sha256/{digest}",
                media_type="application/pdf",
                digest=f"sha256:{digest}",
                size=len(WHOLE),
                labels=("pii",),
            )
        ]
        * 3
    )
    assert await store.load(saved[0]) == WHOLE
    assert (await store.load_to(saved[0], tmp_path / "copy")).read_bytes() == WHOLE


async def test_nothing_is_an_artifact_too(where: str) -> None:
    store = ArtifactStore.at(where)
    assert await store.load(await store.save("nothing", b"")) == b""


async def test_a_missing_object_is_named_with_its_store(where: str, tmp_path: Path) -> None:
    store, target = ArtifactStore.at(where), tmp_path / "target"
    lost = Artifact(name="lost", uri=f"mesh-artifact:sha256/{'0' * 64}")
    with pytest.raises(ArtifactMissing, match="holds no sha256/0000"):
        await store.load(lost)
    with pytest.raises(ArtifactMissing):
        await store.load_to(lost, target)
    assert [name for name in os.listdir(tmp_path) if "target" in name] == []


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "/etc/passwd",
        "s3://another/bucket",
        "mesh-artifact:sha256/../../../../etc/passwd",
        "mesh-artifact:../secret",
        "mesh-artifact:sha256/" + "0" * 64 + "/../x",
        "mesh-artifact:sha256/" + "0" * 64 + "\n",
        "mesh-artifact:sha256/" + "A" * 64,
        "mesh-artifact:sha256/" + "٣" * 64,
        "",
    ],
)
async def test_nothing_outside_of_the_store_is_ever_read(uri: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    with pytest.raises(ArtifactForeign, match="only mesh-artifact:sha256/… is read"):
        await ArtifactStore.at(str(tmp_path / "store")).load(Artifact(name="letter", uri=uri))


async def test_two_digests_in_one_reference_are_an_error(where: str) -> None:
    store = ArtifactStore.at(where)
    saved = await store.save("letter", b"hello")
    changed = msgspec.structs.replace(saved, digest=f"sha256:{'1' * 64}")
    with pytest.raises(ArtifactDigestMismatch, match="changed on the way"):
        await store.load(changed)
    assert await store.load(msgspec.structs.replace(saved, digest="")) == b"hello"


@pytest.mark.parametrize("now", [b"hullo", b"hell", b"hello!", b""])
async def test_other_bytes_than_the_digest_says_are_never_a_value(now: bytes, tmp_path: Path) -> None:
    store, target = ArtifactStore.at(str(tmp_path / "store")), tmp_path / "target"
    saved = await store.save("letter", b"hello")
    (tmp_path / "store" / saved.uri.partition(":")[2]).write_bytes(now)
    with pytest.raises(ArtifactDigestMismatch, match="was changed or cut"):
        await store.load(saved)
    target.write_bytes(b"as before")
    with pytest.raises(ArtifactDigestMismatch):
        await store.load_to(saved, target)
    assert target.read_bytes() == b"as before"


@pytest.mark.parametrize("now", [b"hullo", b"hell", b"hello!", b""])
async def test_other_bytes_in_a_bucket_are_never_a_value(now: bytes, bucket: str, tmp_path: Path) -> None:
    store, target = ArtifactStore.at(bucket), tmp_path / "target"
    saved = await store.save("letter", b"hello")
    await obstore.put_async(from_url(bucket), saved.uri.partition(":")[2], now)
    with pytest.raises(ArtifactDigestMismatch, match="was changed or cut"):
        await store.load(saved)
    with pytest.raises(ArtifactDigestMismatch):
        await store.load_to(saved, target)
    assert not target.exists()


async def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    store = ArtifactStore.at(str(tmp_path / "store"))
    saved = await store.save("letter", b"hello")
    place = tmp_path / "store" / saved.uri.partition(":")[2]
    place.unlink()
    (tmp_path / "outside").write_bytes(b"hello")
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(StoreUnusable, match="symbolic link"):
        await store.load(saved)


async def test_more_than_the_reader_takes_into_memory_is_refused_before_it_is_there(where: str) -> None:
    store = ArtifactStore.at(where)
    saved = await store.save("large", WHOLE)
    with pytest.raises(ArtifactTooLarge, match="more than 1000 bytes: take load_to"):
        await store.load(saved, max_bytes=1000)


async def test_a_stream_that_breaks_leaves_no_object(where: str) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield WHOLE
        raise ConnectionResetError("the source went away")

    store = ArtifactStore.at(where)
    with pytest.raises(ConnectionResetError):
        await store.save("letter", breaks())
    with pytest.raises(ArtifactMissing):
        await store.load(Artifact(name="x", uri=f"mesh-artifact:sha256/{hashlib.sha256(WHOLE).hexdigest()}"))


async def test_a_file_that_changes_while_it_is_saved_is_no_artifact(where: str, tmp_path: Path) -> None:
    store, file = ArtifactStore.at(where), tmp_path / "growing"
    file.write_bytes(WHOLE)
    async with content_of(file) as content:
        file.write_bytes(WHOLE[::-1])
        with pytest.raises(ArtifactDigestMismatch, match="changed while it was being saved"):
            await store.objects.put(f"sha256/{content.digest}", content)
    with pytest.raises(ArtifactMissing):
        await store.load(Artifact(name="x", uri=f"mesh-artifact:sha256/{content.digest}"))


async def test_text_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a str cannot be saved: give bytes, a Path"):
        await ArtifactStore.at(str(tmp_path)).save("letter", "hello")  # type: ignore[arg-type]


# --- killed, and large ----------------------------------------------------------------------------


async def test_a_save_that_is_killed_halfway_shows_nothing_and_is_made_good(where: str) -> None:
    store, whole = ArtifactStore.at(where), bytes(24 * MIB)
    async with child("tests.artifacts.saver_process", "halfway", where, "24") as saver:
        await saver.line("halfway")
        saver.signal(signal.SIGKILL)
        assert await saver.ended() == -signal.SIGKILL
    half = Artifact(name="x", uri=f"mesh-artifact:sha256/{hashlib.sha256(whole).hexdigest()}")
    with pytest.raises(ArtifactMissing):
        await store.load(half)
    assert await store.load(await store.save("x", whole)) == whole


async def test_what_a_killed_save_left_is_swept_once_nobody_can_be_writing_it(tmp_path: Path) -> None:
    store, incoming = ArtifactStore.at(str(tmp_path)), tmp_path / "incoming"
    incoming.mkdir()
    (incoming / "old").write_bytes(b"half")
    (incoming / "young").write_bytes(b"half")
    os.utime(incoming / "old", (0, 0))
    await store.save("letter", b"hello")
    assert [file.name for file in incoming.iterdir()] == ["young"]


LARGE_MIB = 100
AT_MOST_MIB = {"folder": 16, "s3": 64}
"""By how much memory may grow for 100 MiB: of S3, some parts of 8 MiB are under way at once."""


async def test_memory_stays_flat_for_a_large_object(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with child(
        "tests.artifacts.saver_process", "measured", where, f"{LARGE_MIB}", str(tmp_path)
    ) as saver:
        grew = (await saver.line("grew")).split()
        assert await saver.ended() == 0
    assert int(grew[3]) == LARGE_MIB * MIB
    most = AT_MOST_MIB["s3" if "://" in where else "folder"]
    assert max(int(grew[1]), int(grew[2])) <= most, grew
    kept = hashlib.sha256()
    with (tmp_path / "big").open("rb") as file:
        while chunk := file.read(MIB):
            kept.update(chunk)
    assert grew[4] == f"sha256:{kept.hexdigest()}"
