"""Runs a program for a person inside the emulated laptop."""

import signal
import subprocess
from collections.abc import Sequence
from types import FrameType

from cedos.errors import EmulationError
from emu.testbed.phones import SERVER, Laptop

# Names are asked of the emulated server; the host's file is covered for this program alone.
_WITH_RESOLVER = """
mount --bind "$1" "$(readlink -f /etc/resolv.conf)" 2>/dev/null
shift
exec "$@"
"""


def run_in_client(laptop: Laptop, command: Sequence[str]) -> int:
    """Runs `command` in the laptop's client, in the foreground.

    Returns its exit status (128 + signal).
    """
    resolver = laptop.directory / "resolv.conf"
    resolver.write_text(f"nameserver {SERVER}\n")
    line = laptop.client.command(
        "unshare", "--mount", "sh", "-c", _WITH_RESOLVER, "cedos-emu", str(resolver), *command
    )
    # Ctrl-C is the program's: it decides whether it ends. (A handler, since it does not inherit one.)
    before = signal.signal(signal.SIGINT, _leave_it)
    try:
        process = subprocess.Popen(line)
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
