"""`mesh artifact …`: what is too large for a handoff, in the store of the fleet."""

from pathlib import Path

import click

from mesh.artifacts import ArtifactStore
from mesh.cli.options import framed
from mesh.cli.output import report
from mesh.errors import UsageWrong
from protocol.wire.handoff import Artifact

app = click.Group(help="Artifacts, data too large for a handoff: save, get.")


@app.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="Its name; by default the file's.")
@click.option("--media-type", default="", help="Its media type, such as application/pdf.")
@framed
async def save(*, file: Path, name: str | None, media_type: str, as_json: bool) -> None:
    """Save FILE and print its URI, for `mesh send --artifact NAME=URI`.

    Equal files are one object. The store is that of MESH_ARTIFACTS, of the running `mesh dev`, or of
    ./mesh.toml.
    """
    saved = await ArtifactStore.from_env().save(name or file.name, file, media_type=media_type)
    report(saved, saved.uri, as_json=as_json)


@app.command()
@click.argument("uri")
@click.argument("file", type=click.Path(dir_okay=False, writable=True, path_type=Path))
@framed
async def get(*, uri: str, file: Path, as_json: bool) -> None:
    """Write the artifact at URI to FILE, after checking its digest."""

    try:
        await ArtifactStore.from_env().load_to(Artifact(name=file.name, uri=uri), file)
    except OSError as wrong:
        raise UsageWrong(f"{file} cannot be written: {wrong.strerror}") from wrong
    report({"written": str(file)}, str(file), as_json=as_json)
