"""`cedos example`: configurations and systemd units to start from."""

import re
import shutil
import sys
from pathlib import Path

import click

from cedos.commands.console.manual import CONFIG, Manual
from cedos.config import SHIPPED_FILE
from cedos.errors import HostError

_HERE = Path(__file__).with_name("examples")
UNITS = {
    "unit": _HERE / "cedos.service",
    "gateway-unit": _HERE / "cedos-gateway.service",
    "forward-unit": _HERE / "cedos-forward.service",
    "redirect-unit": _HERE / "cedos-redirect.service",
}
# A user's own service runs as this user.
_OF_A_USER = {"forward-unit"}
# Folders that a service with PrivateTmp=yes does not see.
_OWN_OF_SERVICES = {Path("/tmp"), Path("/var/tmp")}  # noqa: S108
# Folders that ProtectHome=yes hides from a service.
_HOMES = ("/home", "/root", "/run/user")


@click.command(
    cls=Manual,
    examples=[
        ("cedos example config > cedos.toml", "A configuration with every default explained."),
        (
            "sudo useradd --system --user-group cedos;"
            " cedos example unit | sudo tee /etc/systemd/system/cedos.service",
            "Installs the service; then `systemctl enable --now cedos`.",
        ),
    ],
    exits={0: "", 2: "", 4: "A service could not start the program from where it lies."},
    files=[CONFIG, ("/etc/systemd/system/cedos.service", "Where the unit belongs.")],
)
@click.argument("what", type=click.Choice(["config", *UNITS]))
def command(what: str) -> None:
    """Print the configuration (`config`) or the systemd unit (`unit`) to start from.

    There are units for `cedos gateway` (`gateway-unit`) and for `cedos forward`: for one user, who
    tells programs of it (`forward-unit`), and for all connections of chosen users
    (`redirect-unit`). The units name the `cedos` of this installation.
    """
    if what == "config":
        click.echo(SHIPPED_FILE.read_text(), nl=False)
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
    if what not in _OF_A_USER:
        _check_service(Path(program))


def _check_service(program: Path) -> None:
    """Raise HostError if a service, which runs as a user of its own, cannot start this program."""
    # The program, its interpreter with the library, and this package, which may lie elsewhere.
    needed = (program, Path(sys.executable), Path(sys.base_prefix, "lib"), SHIPPED_FILE)
    for path in needed:
        if not path.is_absolute():
            raise HostError(
                f"no program {path} is installed beside {sys.executable}, nor on the PATH"
            )
        for folder in reversed((path.resolve() / "_").parents):
            if folder in _OWN_OF_SERVICES:
                why = f"a service has a {folder} of its own"
            elif folder.is_dir() and not folder.stat().st_mode & 0o001:
                why = f"its user may not enter {folder}"
            else:
                continue
            raise HostError(
                f"this unit cannot start: it needs {path}, but {why}. Install cedos where every user may"
                " read it: sudo python3 -m venv /opt/cedos; sudo /opt/cedos/bin/pip install CLONE. Then"
                " ask /opt/cedos/bin/cedos for the unit."
            )
