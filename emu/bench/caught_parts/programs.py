"""Real programs on a plain connection whose Wi-Fi dies: waiting for it, or closed so that they try again.

An emulated laptop with the daemon, Wi-Fi of 24 and LTE of 12 Mbit/s. Programs fetch over Wi-Fi, all at
the same time. After a second nothing gets through it any more, for some seconds or until they have ended.
Each way (`[steering] close_stuck`) has the same trials. What counts is what a person sees: how long each
program took, and whether it failed. A person types over ssh meanwhile; that session must not break.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import WLAN, Access
from emu.testbed.phones import SERVER, Laptop, Silence
from emu.testbed.programs.rescue_laptop import RescueDaemon, put_on_time
from emu.testbed.programs.servers import Servers
from emu.workloads.unmodified.tools import CloneServer, PackageArchive, ShellServer

WAYS: Final = ("never", "after 3s", "after 1s")
ACCESSES: Final = (
    Access(NetworkKind.WIFI, Trace.constant(10e6), Trace.constant(24e6), 0.020),
    Access(NetworkKind.CELLULAR, Trace.constant(5e6), Trace.constant(12e6), 0.050),
)
_SILENT_S: Final = (5.0, 20.0, None)  # None: until all programs have ended
_TRIALS: Final = 2
_LIMIT_S: Final = 45.0
_DIES_AFTER_S: Final = 0.8
_SIZE: Final = 1_500_000
_USER: Final = 65534
_URL: Final = f"http://{SERVER}/bytes/{_SIZE}"
_LIMIT: Final = ("-m", f"{_LIMIT_S:.0f}")
# Each as a person or a script would call it.
_COMMANDS: Final = {
    "curl": ("curl", "-sSf", *_LIMIT, "-o", "{sink}", _URL),
    "curl-retry": ("curl", "-sSf", *_LIMIT, "--retry", "3", "-o", "{sink}", _URL),
    "curl-retry-all": (
        *("curl", "-sSf", *_LIMIT, "--retry", "3", "--retry-all-errors", "-o", "{sink}", _URL),
    ),
    "wget": ("wget", "-q", "-O", "/dev/null", _URL),
    "upload": (
        *("curl", "-sSf", *_LIMIT, "-H", "Expect:", "-T", "{file}", "-o", "/dev/null"),
        f"http://{SERVER}/upload/x",
    ),
}
PROGRAMS: Final = (*_COMMANDS, "git", "apt", "ssh")


@dataclass(frozen=True, slots=True)
class Fared:
    """The end of a program: seconds until then, and whether it had done what it should."""

    took_s: float
    done: bool


@dataclass(slots=True)
class Trials:
    of: dict[str, list[Fared]] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        return {
            key: value
            for program, each in self.of.items()
            for key, value in {
                f"{program}_s": statistics.mean(one.took_s for one in each),
                f"{program}_failed": sum(not one.done for one in each),
            }.items()
        }


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Measure; about ten minutes.

    Returns:
        By way (`never`, `after3s`, ...) and seconds of silence (`5s`, `20s`, `good` for one without an
        end), of `n` trials: each program's mean time (`PROGRAM_s`; at most 45 s), and how often it
        failed (`PROGRAM_failed`).
    """
    figures: dict[str, float] = {"n": _TRIALS}
    for way in WAYS:
        with emulated(way) as bench:
            for silent_s in _SILENT_S:
                name = (
                    f"{way.replace(' ', '')}_{'good' if silent_s is None else f'{silent_s:.0f}s'}"
                )
                trials = Trials()
                for _ in range(_TRIALS):
                    # (Where Wi-Fi stays dead, what is typed cannot come.)
                    programs = PROGRAMS if silent_s is not None else PROGRAMS[:-1]
                    bench.trial(trials, silent_s, programs)
                found = trials.figures()
                progress(
                    f"{name}: {', '.join(f'{key} {value:.1f}' for key, value in found.items())}"
                )
                figures |= {f"{name}_{key}": value for key, value in found.items()}
    return figures


@contextmanager
def emulated(way: str) -> "Iterator[Bench]":
    with ExitStack() as stack:
        laptop = stack.enter_context(Laptop(*ACCESSES, source_rules=False))
        servers = stack.enter_context(Servers(laptop))
        clones = stack.enter_context(CloneServer(laptop, _USER, _SIZE))
        shells = stack.enter_context(ShellServer(laptop, _USER))
        archive = PackageArchive(
            servers.directory / "www", laptop.directory / "apt", _USER, _SIZE, retries=3
        )
        put_on_time(laptop)
        servers.make_size(_SIZE)
        daemon = RescueDaemon(
            laptop, bpf=True, rescue=True, unmetered=True, steering=f'close_stuck = "{way}"\n'
        )
        stack.callback(daemon.stop)
        daemon.start()
        daemon.until_both_live()
        archive.update(laptop.client)
        yield Bench(laptop, daemon, clones, shells, archive)


@dataclass(slots=True)
class Bench:
    laptop: Laptop
    daemon: RescueDaemon
    clones: CloneServer
    shells: ShellServer
    archive: PackageArchive

    def trial(self, trials: Trials, silent_s: float | None, programs: Sequence[str]) -> None:
        """Wi-Fi dies a second after the programs have begun."""
        self._until_over_wifi()
        with Silence(self.laptop, WLAN).when_told() as dies:
            threads = [
                threading.Thread(target=self._fares, args=(each, trials)) for each in programs
            ]
            for thread in threads:
                thread.start()
            time.sleep(_DIES_AFTER_S)
            dies()
            deadline_s = time.monotonic() + (silent_s if silent_s is not None else 2 * _LIMIT_S)
            for thread in threads:
                thread.join(max(0.0, deadline_s - time.monotonic()))
        for thread in threads:
            thread.join()

    def _until_over_wifi(self) -> None:
        self.daemon.until_both_live()
        self.daemon.wait_for(lambda client: client.status().default.network == WLAN, 60.0, 0.2)

    def _fares(self, program: str, trials: Trials) -> None:
        client, began_s = self.laptop.client, time.monotonic()
        try:
            if program == "git":
                done = self.clones.clone(client, limit_s=_LIMIT_S).whole
            elif program == "apt":
                done = self.archive.fetch(client).whole
            elif program == "ssh":
                done = self.shells.typing(client).whole
            else:
                done = self._command(_COMMANDS[program])
        except EmulationError:  # nothing came at all
            done = False
        trials.of.setdefault(program, []).append(Fared(time.monotonic() - began_s, done))

    def _command(self, command: Sequence[str]) -> bool:
        upload = self.laptop.directory / "to-upload"
        if not upload.exists():
            upload.write_bytes(bytes(_SIZE))
        with tempfile.NamedTemporaryFile(dir=self.laptop.directory) as sink:
            # (curl truncates its file before it tries again, which /dev/null refuses.)
            named = {"{file}": str(upload), "{sink}": sink.name}
            return self._done([named.get(word, word) for word in command])

    def _done(self, words: Sequence[str]) -> bool:
        process: subprocess.Popen[bytes] = self.laptop.client.popen(
            *words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            return process.wait(_LIMIT_S) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False


if __name__ == "__main__":
    print(json.dumps(run(lambda line: print(line, file=sys.stderr)), indent=2))
