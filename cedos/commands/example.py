"""`cedos example`: the files to start from."""

import shutil
import sys
from pathlib import Path

import click

from cedos.commands.manual import CONFIG, Manual
from cedos.config import SHIPPED_FILE

UNIT = Path(__file__).parents[1] / "cedos.service"


@click.command(
    cls=Manual,
    examples=[
        ("cedos example config > cedos.toml", "A configuration with every default explained."),
        (
            "cedos example unit | sudo tee /etc/systemd/system/cedos.service",
            "Installs the service; then `systemctl enable --now cedos`.",
        ),
    ],
    exits=(0, 2),
    files=[CONFIG, ("/etc/systemd/system/cedos.service", "Where the unit belongs.")],
)
@click.argument("what", type=click.Choice(["config", "unit"]))
def command(what: str) -> None:
    """Prints the configuration (`config`) or the systemd unit (`unit`) to start from.

    The unit names this very installation's `cedos`.
    """
    if what == "config":
        click.echo(SHIPPED_FILE.read_text(), nl=False)
        return
    beside = Path(sys.executable).with_name("cedos")
    program = str(beside) if beside.exists() else shutil.which("cedos") or "cedos"
    click.echo(UNIT.read_text().replace("=cedos ", f"={program} "), nl=False)
    for path in (Path(program), Path(sys.executable)):
        if closed := _closed_folder(path):
            click.echo(
                f"cedos: the service runs as a user of its own, who may not enter {closed}:"
                f" {path} must lie elsewhere, in /opt say",
                err=True,
            )
            return


def _closed_folder(path: Path) -> Path | None:
    """The first folder on the way to a file that is not open to every user."""
    folders = reversed(path.resolve().parents)
    return next((folder for folder in folders if not folder.stat().st_mode & 0o001), None)
