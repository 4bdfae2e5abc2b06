"""Commands that need no bus: `mesh init` and `mesh completion`."""

from pathlib import Path

import click
from click.shell_completion import get_completion_class

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
    """Write a starter project: two agents that hand work to each other."""
    from mesh.local.project import write_starter

    written = write_starter(directory)
    words = _NEXT.format(count=len(written), directory=directory)
    report({"written": [str(path) for path in written]}, words, as_json=as_json, lines=True)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="Your shell.")
@framed
def completion(*, shell: str) -> None:
    """Print the script that completes `mesh` in a shell.

    bash: eval "$(mesh completion bash)" in ~/.bashrc; zsh: eval "$(mesh completion zsh)" in ~/.zshrc;
    fish: mesh completion fish > ~/.config/fish/completions/mesh.fish
    """
    from mesh.cli import app

    found = get_completion_class(shell)
    if found is None:
        raise UsageWrong(f"there is no completion for {shell}")
    written = found(app, {}, "mesh", "_MESH_COMPLETE")
    say(written.source_template % written.source_vars(), lines=True)
