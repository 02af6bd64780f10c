"""Our packet filter, through the real `iptables` and `ip6tables`: it tracks flows and drops.

Two chains of our own, `CEDOS_OUT` and `CEDOS_IN`, first in OUTPUT and INPUT of the table `filter`.
In a namespace the kernel tracks connections only where some rule asks for their state, and what a
dead network still carries is dropped, so that the kernel leaves it (break before make; Delphi, section
8). All of an IP version is put in by one `iptables-restore`, or nothing of it. A call takes
milliseconds, and none is on the way of a decision.

An iptables that runs on nf_tables makes the table with its first rule. An empty third chain,
`CEDOS_TABLE`, remembers that there was none, so that the table can be taken out with the chains.
"""

import errno
import os
import shutil
import socket
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

# Our chains: where they are jumped to from, and which side of a packet's way they look at.
_CHAINS: Final = {"CEDOS_OUT": ("OUTPUT", "-o"), "CEDOS_IN": ("INPUT", "-i")}
_NEW_TABLE: Final = "CEDOS_TABLE"
_TRACK: Final = "-A CEDOS_OUT -m conntrack --ctstate NEW"
# A table in which nobody has put anything.
_EMPTY: Final = frozenset(f":{chain} ACCEPT" for chain in ("INPUT", "FORWARD", "OUTPUT"))
_IPV6: Final = Path("/proc/net/if_inet6")
# How long iptables may wait for its lock (the legacy kind has one), and we for iptables.
_LOCK_S, _TIMEOUT_S = 5, 10.0


def replace(track: bool, dropped: Collection[int]) -> None:
    """Puts our chains in, or other rules into them.

    Args:
        track: make the kernel track connections.
        dropped: indices of interfaces to leave at once: what goes out or comes in there is dropped.

    Raises:
        OSError: iptables is not installed, or refuses; the text is its own.
    """
    names = [name for index, name in socket.if_nameindex() if index in dropped]
    programs = _programs()
    if not programs:
        raise OSError(errno.ENOENT, "iptables is not installed")
    for program in programs:
        stands = _table(program)
        lines = [f":{chain} - [0:0]" for chain in _CHAINS]
        if not _ours(stands) and not _has_table(program):
            lines.append(f":{_NEW_TABLE} - [0:0]")
        if track:
            lines.append(_TRACK)
        for chain, (hook, direction) in _CHAINS.items():
            lines += [f"-A {chain} {direction} {name} -j DROP" for name in names]
            if f"-A {hook} -j {chain}" not in stands:
                lines.append(f"-I {hook} -j {chain}")
        _restore(program, lines, "--noflush")


def present() -> bool:
    """Whether something of ours is in; False also where this cannot be found out."""
    return any(_ours(_table(program)) for program in _programs())


def remove() -> bool:
    """Takes everything of ours out; whether there was something.

    Raises:
        OSError: iptables refuses.
    """
    done = False
    for program in _programs():
        stands = _table(program)
        ours = _ours(stands)
        if not ours:
            continue
        done = True
        if f":{_NEW_TABLE} -" in ours and set(stands) - set(ours) <= _EMPTY:
            # To restore an empty table takes it out, where the kernel can do without.
            _restore(program, [])
            continue
        chains = [line.split()[0][1:] for line in ours if line.startswith(":")]
        jumps = [line for line in ours if not line.startswith((":", "-A CEDOS_"))]
        lines = [f"-D {jump.removeprefix('-A ')}" for jump in jumps]
        lines += [f"-{act} {chain}" for act in "FX" for chain in chains]
        _restore(program, lines, "--noflush")
    return done


def _programs() -> list[str]:
    """The programs for the IP versions that this kernel has, as far as they are installed."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    names = ["iptables", "ip6tables"] if _IPV6.exists() else ["iptables"]
    return [found for name in names if (found := shutil.which(name, path=path))]


def _table(program: str) -> list[str]:
    """The chains and rules of the table `filter`, without counters; none where it cannot be read."""
    done = _run([f"{program}-save", "-t", "filter"])
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [line.partition(" [")[0] for line in lines if line.startswith((":", "-"))]


def _has_table(program: str) -> bool:
    """Whether there is such a table: asked for by its name, an empty one is shown for none."""
    done = _run([f"{program}-save"])
    return done.returncode != 0 or "*filter" in done.stdout.splitlines()


def _ours(stands: Iterable[str]) -> list[str]:
    """Our chains, their rules, and the jumps to them."""
    jumps = tuple(f" -j {chain}" for chain in _CHAINS)
    return [
        line for line in stands if line.startswith((":CEDOS_", "-A CEDOS_")) or line.endswith(jumps)
    ]


def _restore(program: str, lines: list[str], *options: str) -> None:
    said = "\n".join(("*filter", *lines, "COMMIT", ""))
    done = _run([f"{program}-restore", *options, "-w", str(_LOCK_S)], said)
    if done.returncode != 0:
        text = " ".join(done.stderr.split()) or f"{program}-restore failed"
        denied = "permission denied" in text.lower()
        raise OSError(errno.EPERM if denied else errno.EIO, text)


def _run(command: list[str], said: str = "") -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, input=said, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, f"{command[0]} does not end") from error
