"""`cedos-emu shell`: run a command inside the emulated laptop, as `mm-link` for two phones."""

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

import click

from cedos.commands.console.render import echo
from cedos.errors import EmulationError
from emu.console import examples
from emu.testbed.phones import SERVER, Laptop

# The emulated server answers look-ups. The host's resolver file, and the host's and the user's
# folders of cedos, are hidden from this program alone, as programs may drop the environment.
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
    """Run `command` in the laptop's client, in the foreground.

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
    # What the user has set on purpose stays.
    environment |= os.environ
    with _there(covers):
        pairs = [str(path) for usual, folder in covers.items() for path in (folder, usual)]
        line = laptop.client.command(
            *("unshare", "--mount", "sh", "-c", _AS_ON_A_LAPTOP, "cedos-emu", str(resolver)),
            *(*pairs, "--", *command),
        )
        return run_in_foreground(line, command[0], environment)


def run_in_foreground(line: Sequence[str], name: str, environment: Mapping[str, str]) -> int:
    """Run a command line as this terminal's program; return its exit status (128 + signal)."""
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
    """Return this user's homes, by the environment and by the password file."""
    homes = {Path(environment.get("HOME", "/"))}
    with suppress(KeyError):
        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return {home for home in homes if home.is_dir()}


@contextmanager
def _there(folders: Iterable[Path]) -> Iterator[None]:
    """Make the folders that are missing and remove them at the end: only what exists can be covered."""
    with ExitStack() as kept:
        for folder in folders:
            with suppress(OSError):  # a folder that cannot be made cannot be written to
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
    """Do nothing."""


# The emulation's priority, above the programs that it carries.
_NICE: Final = -5


@click.command(
    "shell",
    epilog=examples(
        "cedos-emu shell --places traces --place static-s13 -- curl -o /dev/null http://server/bytes/10000000",
        "cedos-emu shell --places traces --place static-s13 --start 30 -- curl --interface lte0 http://server/",
    ),
    context_settings={"ignore_unknown_options": True},
)
@click.option("--place", "name", metavar="PLACE", help="The place to replay.  [default: the first]")
@click.option(
    "--places",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="The collection it is in.  [default: the real places beside the repository, else ours]",
)
@click.option("--start", "start_s", type=float, default=0.0, help="Seconds into the place.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND...]")
@click.pass_context
def command(
    ctx: click.Context,
    name: str | None,
    directory: Path | None,
    start_s: float,
    arguments: tuple[str, ...],
) -> None:
    """Run COMMAND (or a shell) in a laptop with two tethered phones, and exit as it does.

    wlan0 and lte0 replay the place's two traces from --start on, again and again. The server is
    198.51.100.1 and every name: http://any.name/bytes/N answers N bytes, PUT /upload/X takes any
    body; plain TCP and MPTCP. What cedos keeps (CEDOS_STATE_DIR, CEDOS_RUNTIME_DIR) is the laptop's
    own and gone at the end, unless you set them.
    """
    from cedos.model import NetworkKind  # noqa: PLC0415
    from emu.places.places import default_directory, load  # noqa: PLC0415
    from emu.testbed.access import Access  # noqa: PLC0415
    from emu.testbed.phones import SERVER, Laptop  # noqa: PLC0415
    from emu.testbed.programs.servers import Servers  # noqa: PLC0415

    places = load(default_directory(directory))
    place = places[name] if name else next(iter(places.values()))
    accesses = []
    for kind, network in place.networks.items():
        access = Access(NetworkKind(kind), up=network.up, down=network.down, rtt_s=network.rtt_s)
        accesses.append(access.rotated(start_s))
        echo(
            f"{access.interface}: {network.name} from {start_s:g} s, RTT {access.rtt_s * 1000:.0f} ms",
            err=True,
        )
    wanted = arguments or (os.environ.get("SHELL", "/bin/sh"),)
    with Laptop(*accesses, nice=_NICE) as laptop, Servers(laptop):
        echo(f"server: {SERVER}", err=True)
        ctx.exit(run_in_client(laptop, wanted))
