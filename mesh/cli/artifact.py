"""`mesh artifact`: put a file into the store of artifacts, and fetch one from it. It needs no bus."""

from pathlib import Path

import click

from mesh.cli.options import A_PATH, framed
from mesh.cli.output import report

app = click.Group(help="What is too large for a handoff, in the store of the fleet.")


@app.command()
@click.argument("file", type=A_PATH)
@click.option("--name", help="How it is called; by default as the file.")
@click.option("--media-type", default="", help="Such as application/pdf.")
@framed
async def save(*, file: Path, name: str | None, media_type: str, as_json: bool) -> None:
    """Save FILE and print its URI, for `mesh send --artifact NAME=URI`.

    Equal files are one object. The store is that of MESH_ARTIFACTS, of the running `mesh dev`, or of
    ./mesh.toml.
    """
    from mesh.artifacts import ArtifactStore

    artifact = await ArtifactStore.from_env().save(name or file.name, file, media_type=media_type)
    report(artifact, artifact.uri, as_json=as_json)


@app.command()
@click.argument("uri")
@click.argument("file", type=A_PATH)
@framed
async def get(*, uri: str, file: Path, as_json: bool) -> None:
    """Write the artifact at URI to FILE, once its digest was checked."""
    from mesh.artifacts import ArtifactStore
    from protocol.wire.handoff import Artifact

    written = await ArtifactStore.from_env().load_to(Artifact(name=file.name, uri=uri), file)
    report({"written": str(written)}, str(written), as_json=as_json)
