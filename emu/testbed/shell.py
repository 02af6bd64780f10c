"""Runs a program for a person inside the emulated laptop."""

import os
import signal
import subprocess
from collections.abc import Sequence
from types import FrameType

from cedos.errors import EmulationError
from emu.testbed.phones import SERVER, Laptop

# Names are asked of the emulated server; the host's file is covered for this program alone.
# So are the host's and the user's directories of cedos where there are any: programs may drop the
# environment.
_AS_ON_A_LAPTOP = """
mount --bind "$1" "$(readlink -f /etc/resolv.conf)" 2>/dev/null
if [ -d /var/lib/cedos ]; then mount --bind "$2" /var/lib/cedos; fi
if [ -d /run/cedos ]; then mount --bind "$3" /run/cedos; fi
for kind in config:.config state:.local/state cache:.cache; do
  host="$HOME/${kind#*:}/cedos"
  if [ -d "$host" ]; then mount --bind "$4/${kind%%:*}" "$host"; fi
done
shift 4
exec "$@"
"""


def run_in_client(laptop: Laptop, command: Sequence[str]) -> int:
    """Runs `command` in the laptop's client, in the foreground.

    What cedos keeps there is gone with the laptop. Returns the exit status (128 + signal).
    """
    resolver = laptop.directory / "resolv.conf"
    resolver.write_text(f"nameserver {SERVER}\n")
    folders = {what: laptop.directory / f"cedos-{what.lower()}" for what in ("STATE", "RUNTIME")}
    for folder in folders.values():
        folder.mkdir()
    own = laptop.directory / "cedos-user"
    for kind in ("config", "state", "cache"):
        (own / kind).mkdir(parents=True)
    line = laptop.client.command(
        *("unshare", "--mount", "sh", "-c", _AS_ON_A_LAPTOP, "cedos-emu"),
        *map(str, (resolver, *folders.values(), own, *command)),
    )
    # What somebody has set on purpose stays.
    environment = {f"CEDOS_{what}_DIR": str(folder) for what, folder in folders.items()}
    environment["CEDOS_USER_DIR"] = str(own)
    environment |= os.environ
    # Ctrl-C is the program's: it decides whether it ends. (A handler, since it does not inherit one.)
    before = signal.signal(signal.SIGINT, _leave_it)
    try:
        process = subprocess.Popen(line, env=environment)
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    except OSError as error:
        raise EmulationError(f"cannot run {command[0]}: {error}") from error
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - status if status < 0 else status


def _leave_it(number: int, frame: FrameType | None) -> None:
    """Does nothing."""
