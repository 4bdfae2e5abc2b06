"""Commands that need no bus: `mesh init`, `completion`, `schema` and `artifact`."""

from pathlib import Path

import click

from mesh.cli.options import A_PATH, framed
from mesh.cli.output import report, say
from mesh.errors import UsageWrong

_NEXT = """\
{count} files in {directory}: two agents, their prompt and rules, the fleet file, and tests
  cd {directory}
  mesh dev                              server, guard and agents, until Ctrl-C
  mesh send "Where is order 1042?"      in another terminal, in that folder
  pytest                                the same agents, without a server"""


@click.command()
@click.argument("directory", type=A_PATH, metavar="DIR", help="A new folder, which names the project.")
@framed
def init(*, directory: Path, as_json: bool) -> None:
    """Write a starter project: two agents of your own that hand work to each other."""
    from mesh.local.project import write_starter

    written = write_starter(directory)
    said = _NEXT.format(count=len(written), directory=directory)
    report({"written": [str(path) for path in written]}, said, as_json=as_json, lines=True)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="Your shell.")
@framed
def completion(*, shell: str) -> None:
    """Print the script that completes `mesh` in a shell.

    bash: eval "$(mesh completion bash)" in ~/.bashrc; zsh: eval "$(mesh completion zsh)" in ~/.zshrc;
    fish: mesh completion fish > ~/.config/fish/completions/mesh.fish
    """
    from click.shell_completion import get_completion_class

    from mesh.cli import app

    found = get_completion_class(shell)
    if found is None:
        raise UsageWrong(f"there is no completion for {shell}")
    written = found(app, {}, "mesh", "_MESH_COMPLETE")
    say(written.source_template % written.source_vars(), lines=True)


schema = click.Group(help="The schemas of the wire contract.")


@schema.command("export")
@click.option(
    "--out",
    type=A_PATH,
    default=Path("schema"),
    show_default=True,
    help="The directory to write them to.",
)
@framed
def export(*, out: Path, as_json: bool) -> None:
    """Write the JSON Schema and the AsyncAPI document, generated from the types that the code uses."""
    from protocol.wire.schema import documents

    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in sorted(documents().items()):
        (out / name).write_text(text)
        written.append(str(out / name))
    report({"written": written}, "\n".join(written), as_json=as_json, lines=True)


artifact = click.Group(help="What is too large for a handoff, in the store of the fleet.")


@artifact.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="How it is called; by default as the file.")
@click.option("--media-type", default="", help="Such as application/pdf.")
@framed
async def save(*, file: Path, name: str | None, media_type: str, as_json: bool) -> None:
    """Save FILE and print its URI, for `mesh send --artifact NAME=URI`.

    Equal files are one object. The store is that of MESH_ARTIFACTS, of the running `mesh dev`, or of
    ./mesh.toml.
    """
    from mesh.artifacts import ArtifactStore

    saved = await ArtifactStore.from_env().save(name or file.name, file, media_type=media_type)
    report(saved, saved.uri, as_json=as_json)


@artifact.command()
@click.argument("uri")
@click.argument("file", type=click.Path(dir_okay=False, writable=True, path_type=Path))
@framed
async def get(*, uri: str, file: Path, as_json: bool) -> None:
    """Write the artifact at URI to FILE, once its digest was checked."""
    from mesh.artifacts import ArtifactStore
    from protocol.wire.handoff import Artifact

    try:
        await ArtifactStore.from_env().load_to(Artifact(name=file.name, uri=uri), file)
    except OSError as wrong:
        raise UsageWrong(f"{file} cannot be written: {wrong.strerror}") from wrong
    report({"written": str(file)}, str(file), as_json=as_json)
