"""Runs a program for a person inside the emulated laptop."""

import fcntl
import os
import pwd
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from cedos.errors import EmulationError
from emu.testbed.phones import SERVER, Laptop

# Names are asked of the emulated server; the host's file is covered for this program alone.
# So are the host's and the user's folders of cedos: programs may drop the environment.
_AS_ON_A_LAPTOP = """
mount --bind "$1" "$(readlink -f /etc/resolv.conf)" 2>/dev/null
shift
while [ "$1" != -- ]; do
  if [ -d "$2" ]; then mount --bind "$1" "$2" || exit 1; fi
  shift 2
done
shift
exec "$@"
"""
_HOST: Final = {"STATE": Path("/var/lib/cedos"), "RUNTIME": Path("/run/cedos")}
_USER: Final = {"config": ".config/cedos", "state": ".local/state/cedos", "cache": ".cache/cedos"}


def run_in_client(laptop: Laptop, command: Sequence[str]) -> int:
    """Runs `command` in the laptop's client, in the foreground.

    What cedos keeps there is gone with the laptop. Returns the exit status (128 + signal).
    """
    resolver = laptop.directory / "resolv.conf"
    resolver.write_text(f"nameserver {SERVER}\n")
    own = laptop.directory / "cedos-user"
    environment = {"CEDOS_USER_DIR": str(own)}
    covers: dict[Path, Path] = {}
    for what, usual in _HOST.items():
        covers[usual] = laptop.directory / f"cedos-{what.lower()}"
        environment[f"CEDOS_{what}_DIR"] = str(covers[usual])
    for home in _homes(os.environ):
        covers |= {home / usual: own / kind for kind, usual in _USER.items()}
    for folder in covers.values():
        folder.mkdir(parents=True, exist_ok=True)
    # What somebody has set on purpose stays.
    environment |= os.environ
    with _there(covers):
        pairs = [str(path) for usual, folder in covers.items() for path in (folder, usual)]
        line = laptop.client.command(
            *("unshare", "--mount", "sh", "-c", _AS_ON_A_LAPTOP, "cedos-emu", str(resolver)),
            *(*pairs, "--", *command),
        )
        return _run(line, command[0], environment)


def _run(line: Sequence[str], name: str, environment: Mapping[str, str]) -> int:
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
        raise EmulationError(f"cannot run {name}: {error}") from error
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - status if status < 0 else status


def _homes(environment: Mapping[str, str]) -> set[Path]:
    """This user's, by the environment, and by what counts for who has dropped that."""
    homes = {Path(environment.get("HOME", "/"))}
    with suppress(KeyError):
        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return {home for home in homes if home.is_dir()}


@contextmanager
def _there(folders: Iterable[Path]) -> Iterator[None]:
    """Only what exists can be covered: what is missing is made, and goes again in the end."""
    with ExitStack() as kept:
        for folder in folders:
            with suppress(OSError):  # where nobody can make it, nobody can write to it
                kept.enter_context(_made(folder))
        yield


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        with suppress(OSError):  # another shell covers it, too; or it is not empty
            if missing:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for each in missing:
                each.rmdir()
        os.close(descriptor)


def _leave_it(number: int, frame: FrameType | None) -> None:
    """Does nothing."""
