"""`cedos example`: configurations and systemd units to start from."""

import re
import shutil
import sys
from pathlib import Path

import click

from cedos.commands.console.manual import CONFIG, Manual
from cedos.config import SHIPPED_FILE

_HERE = Path(__file__).with_name("examples")
UNITS = {
    "unit": _HERE / "cedos.service",
    "gateway-unit": _HERE / "cedos-gateway.service",
    "forward-unit": _HERE / "cedos-forward.service",
    "redirect-unit": _HERE / "cedos-redirect.service",
}
# Folders that ProtectHome=yes hides from a service.
_HOMES = ("/home", "/root", "/run/user")
PLAIN = {
    "config": SHIPPED_FILE,
    "relay-unit": _HERE / "cedos-relay.service",
    "relay-config": _HERE / "cedos-relay.conf",
}


@click.command(
    cls=Manual,
    examples=[
        ("cedos example config > cedos.toml", "A configuration with every default explained."),
        (
            "sudo useradd --system --user-group cedos;"
            " cedos example unit | sudo tee /etc/systemd/system/cedos.service",
            "Installs the service; then `systemctl enable --now cedos`.",
        ),
        (
            "cedos example relay-config | sudo tee /etc/cedos/relay.conf",
            "Configures a relay: MPTCP for clients whose servers do not speak it. It needs squid.",
        ),
    ],
    exits=(0, 2),
    files=[CONFIG, ("/etc/systemd/system/cedos.service", "Where the unit belongs.")],
)
@click.argument("what", type=click.Choice([*PLAIN, *UNITS]))
def command(what: str) -> None:
    """Print the configuration (`config`) or the systemd unit (`unit`) to start from.

    There are units for `cedos gateway` (`gateway-unit`) and for `cedos forward`: for one user, who
    tells programs of it (`forward-unit`), and for all connections of chosen users
    (`redirect-unit`). The units name the `cedos` of this installation.

    A relay speaks MPTCP to clients whose servers do not speak it: `relay-unit` runs Debian's squid
    under `mptcpize`, and `relay-config` is its configuration.
    """
    if what in PLAIN:
        click.echo(PLAIN[what].read_text(), nl=False)
        return
    beside = Path(sys.executable).with_name("cedos")
    program = str(beside) if beside.exists() else shutil.which("cedos") or "cedos"
    text = re.sub(r"^(Exec\w+=)cedos ", rf"\g<1>{program} ", UNITS[what].read_text(), flags=re.M)
    if not any(
        Path(each).resolve().is_relative_to(home)
        for home in _HOMES
        for each in (program, sys.executable)
    ):
        text = text.replace("ProtectHome=read-only", "ProtectHome=yes")
    click.echo(text, nl=False)
    for path in (Path(program), Path(sys.executable)):
        if closed := _closed_folder(path):
            click.echo(
                f"cedos: the service runs as a user of its own, who may not enter {closed}:"
                f" {path} must lie elsewhere, in /opt say",
                err=True,
            )
            return


def _closed_folder(path: Path) -> Path | None:
    """Return the first parent folder that other users may not enter."""
    folders = reversed(path.resolve().parents)
    return next((folder for folder in folders if not folder.stat().st_mode & 0o001), None)
