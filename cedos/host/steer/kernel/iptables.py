"""Our packet filter, through the real `iptables` and `ip6tables`: chains put in and taken out.

One that always stands is `CEDOS_OUT`, first in OUTPUT of the table `filter`: in a namespace the kernel
tracks connections only where some rule asks for their state. It also answers the IPv6 sockets that
routing refuses (`cedos.host.steer.routing_plan`) at once; without, TCP hears of it when it repeats
its first packet, after 1 s. All of an IP version is put in by one `iptables-restore`, or nothing of
it. A call takes milliseconds, and none is on the way of a decision.

An iptables that runs on nf_tables makes the table with its first rule. Another, empty chain,
`CEDOS_TABLE`, remembers that there was none, so that the table can be taken out with the chains.
"""

import errno
import os
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

# The prefix of the daemon's chains.
PREFIX: Final = "CEDOS_"

_NEW_TABLE: Final = "TABLE"
_TABLES: Final = ("filter", "mangle")
_TRACK: Final = "-m conntrack --ctstate NEW"
_HOOKS: Final = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
# The chains of a table that contains no rule.
_EMPTY: Final = frozenset(f":{chain} ACCEPT" for chain in _HOOKS)
_IPV6: Final = Path("/proc/net/if_inet6")
# How long iptables waits for its lock (the legacy kind has one), and how long the daemon waits for
# iptables.
_LOCK_S, _TIMEOUT_S = 5, 10.0


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of ours: its name (CEDOS_...), the built-in one that jumps to it, and its rules.

    `hook` empty: another chain of ours jumps to it.
    """

    table: str
    name: str
    hook: str
    rules: tuple[str, ...]


# From ::1 to no address of this host; loopback's own traffic, to a group or another address of the
# host, is none of that.
_REFUSED: Final = (
    "-6 -o lo -s ::1/128 {protocol}-m addrtype --dst-type UNICAST -m addrtype ! --dst-type LOCAL"
    " -j REJECT --reject-with {answer}"
)
TRACKING: Final = Chain(
    "filter",
    "CEDOS_OUT",
    "OUTPUT",
    (
        _TRACK,
        # An error of ICMP would come while connect() still holds the socket, and not be heard.
        _REFUSED.format(protocol="-p tcp ", answer="tcp-reset"),
        _REFUSED.format(protocol="", answer="icmp6-no-route"),
        # From an address that this host has lost: an answer of the kernel's, with the packet in it, would
        # leave over any network.
        "-6 -o lo -m addrtype ! --src-type LOCAL --dst-type UNICAST -m addrtype ! --dst-type LOCAL"
        " -j DROP",
    ),
)
_TRACKING_ALONE: Final = Chain("filter", "CEDOS_OUT", "OUTPUT", (_TRACK,))


def track() -> Chain:
    """Make the kernel track connections, and answers refused ones where it can; by which chain.

    Raises:
        OSError: iptables is not installed, or refuses; the text is its own.
    """
    try:
        put_in([TRACKING])
        return TRACKING
    except OSError:  # this kernel may lack what only the answers need
        put_in([_TRACKING_ALONE])
        return _TRACKING_ALONE


def put_in(
    chains: Sequence[Chain], names: Mapping[int, str] | None = None, prefix: str = PREFIX
) -> None:
    """Put chains of one or more tables in, or other rules into them: all of an IP version, or none.

    `{set}` in a rule stands for the IP version's name in `names`; `prefix` begins the names of all
    chains of the caller. OSError without iptables, or with its own words.
    """
    for version, saved in _read_saved().items():
        _put(chains, saved, (names or {}).get(version), prefix)


def put_back(chains: Sequence[Chain]) -> bool:
    """Put in again where something has gone, by IP version; return whether any was."""
    gone = [
        saved
        for version, saved in _read_saved().items()
        if not _stand(version, chains, saved, PREFIX)
    ]
    for saved in gone:
        _put(chains, saved, None)
    return bool(gone)


def stand(chains: Sequence[Chain], prefix: str = PREFIX) -> bool:
    """Return whether chains, their rules and the jumps to them are there, in each IP version.

    What a rule says is not looked at: the kernel shows it in other words. OSError without iptables.
    """
    return all(_stand(version, chains, saved, prefix) for version, saved in _read_saved().items())


class _Saved:
    """An IP version's tables, read by one call."""

    def __init__(self, program: str) -> None:
        done = _run([f"{program}-save"])
        self.program = program
        self._readable = done.returncode == 0  # one foreign table may be in the way
        self._tables: dict[str, list[str]] = {}
        mine: list[str] = []
        for line in done.stdout.splitlines():
            if line.startswith("*"):
                mine = self._tables[line[1:]] = []
            elif line.startswith((":", "-")):
                mine.append(line.partition(" [")[0])

    def table(self, name: str) -> list[str]:
        return self._tables.get(name, []) if self._readable else _table(self.program, name)

    def has_table(self, name: str) -> bool:
        return not self._readable or name in self._tables


def _read_saved() -> dict[int, _Saved]:
    """Read both IP versions side by side: a wall that is to come back is in a hurry.

    (What changes something goes one after the other: on nf_tables the one would interrupt the other.)
    """
    found = programs()
    if not found:
        raise OSError(errno.ENOENT, "iptables is not installed")
    with ThreadPoolExecutor(len(found), "iptables") as side_by_side:
        return dict(zip(found, side_by_side.map(_Saved, found.values()), strict=True))


def _put(
    chains: Sequence[Chain], saved: _Saved, set_name: str | None, prefix: str = PREFIX
) -> None:
    tables: list[str] = []
    for table in dict.fromkeys(chain.table for chain in chains):
        there = saved.table(table)
        mine = [chain for chain in chains if chain.table == table]
        lines = [f":{chain.name} - [0:0]" for chain in mine]
        if not _own_rules(there, prefix) and not saved.has_table(table):
            lines.append(f":{prefix}{_NEW_TABLE} - [0:0]")
        for chain in mine:
            lines += [f"-A {chain.name} {rule.format(set=set_name)}" for rule in chain.rules]
            if not chain.hook:
                continue
            jumps = there.count(f"-A {chain.hook} -j {chain.name}")
            if not jumps:
                # The daemon's walls stand first, whatever else of cedos comes later.
                jumped = [line for line in there if line.startswith(f"-A {chain.hook} ")]
                walls = takewhile(lambda line: prefix != PREFIX and f" -j {PREFIX}" in line, jumped)
                lines.append(f"-I {chain.hook} {1 + len(list(walls))} -j {chain.name}")
            # iptables on nf_tables may do twice what another program's change interrupts.
            lines += [f"-D {chain.hook} -j {chain.name}"] * (jumps - 1)
        tables += [f"*{table}", *lines, "COMMIT"]
    _restore(saved.program, tables, "--noflush")


def _stand(version: int, chains: Sequence[Chain], saved: _Saved, prefix: str) -> bool:
    others = "-6 " if version == 4 else "-4 "
    there = {
        table: Counter(
            " ".join(line.split(None, 2)[:2]) if line.startswith(f"-A {prefix}") else line
            for line in _own_rules(saved.table(table), prefix)
        )
        for table in {chain.table for chain in chains}
    }
    return all(
        there[chain.table][f":{chain.name} -"] == 1
        and there[chain.table][f"-A {chain.name}"]
        == sum(not rule.startswith(others) for rule in chain.rules)
        and there[chain.table][f"-A {chain.hook} -j {chain.name}"] == bool(chain.hook)
        for chain in chains
    )


def on_nf_tables() -> bool:
    """Return whether iptables runs on nf_tables, whose changes the kernel tells of; OSError as above."""
    return all(map(_is_on_nf_tables, programs().values()))


@cache
def _is_on_nf_tables(program: str) -> bool:
    return "nf_tables" in _run([program, "--version"]).stdout


def present(*tables: str, prefix: str = PREFIX) -> bool:
    """Return whether something of ours is in tables (in `_TABLES`); False too if that is unknown."""
    return any(
        _own_rules(_table(program, table), prefix)
        for program in programs().values()
        for table in tables or _TABLES
    )


def remove(*tables: str, prefix: str = PREFIX) -> bool:
    """Take everything of ours out of tables (out of `_TABLES`); return whether there was something.

    Raises:
        OSError: iptables refuses.
    """
    done = False
    for program in programs().values():
        for table in tables or _TABLES:
            done = _remove(program, table, prefix) or done
    return done


def drop_chain(table: str, name: str) -> None:
    """Remove one chain that nothing jumps to; one that is gone is fine. OSError: iptables refuses."""
    for program in programs().values():
        if f":{name} -" in _table(program, table):
            _restore(program, [f"*{table}", f"-F {name}", f"-X {name}", "COMMIT"], "--noflush")


class Counted(NamedTuple):
    """The counters of a rule."""

    packets: int
    bytes: int


def counters(table: str, prefix: str) -> dict[str, list[Counted]]:
    """Return by chain what each of its rules has matched in IPv4; OSError: iptables refuses."""
    found: defaultdict[str, list[Counted]] = defaultdict(list)
    done = _run([f"{programs().get(4, 'iptables')}-save", "-c", "-t", table])
    if done.returncode != 0:
        raise OSError(errno.EIO, " ".join(done.stderr.split()))
    for line in done.stdout.splitlines():
        if (rule := _COUNTED.match(line)) and rule["chain"].startswith(prefix):
            found[rule["chain"]].append(Counted(int(rule["packets"]), int(rule["bytes"])))
    return dict(found)


_COUNTED: Final = re.compile(r"\[(?P<packets>\d+):(?P<bytes>\d+)\] -A (?P<chain>\S+) ")


def _remove(program: str, table: str, prefix: str) -> bool:
    stands = _table(program, table)
    ours = _own_rules(stands, prefix)
    if not ours:
        return False
    if f":{prefix}{_NEW_TABLE} -" in ours and set(stands) - set(ours) <= _EMPTY:
        # To restore an empty table takes it out, where the kernel can do without.
        _restore(program, [f"*{table}", "COMMIT"])
        return True
    chains = [line.split()[0][1:] for line in ours if line.startswith(":")]
    jumps = [line for line in ours if not line.startswith((":", f"-A {prefix}"))]
    lines = []
    if f":{prefix}{_NEW_TABLE} -" in ours:  # the daemon or a helper, whichever stays, takes it out
        others = {line[1:].partition("_")[0] for line in stands if line.startswith(":CEDOS")}
        lines = [f":{each}_{_NEW_TABLE} - [0:0]" for each in others - {prefix.rstrip("_")}]
    lines += [f"-D {jump.removeprefix('-A ')}" for jump in jumps]
    lines += [f"-{act} {chain}" for act in "FX" for chain in chains]
    _restore(program, [f"*{table}", *lines, "COMMIT"], "--noflush")
    return True


def programs() -> dict[int, str]:
    """Return the programs for the IP versions that this kernel has, as far as they are installed."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    names = {4: "iptables", 6: "ip6tables"} if _IPV6.exists() else {4: "iptables"}
    return {
        version: found
        for version, name in names.items()
        if (found := shutil.which(name, path=path))
    }


def _table(program: str, table: str) -> list[str]:
    """Return a table's chains and rules, without counters; none where it cannot be read."""
    done = _run([f"{program}-save", "-t", table])
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [line.partition(" [")[0] for line in lines if line.startswith((":", "-"))]


def _own_rules(stands: Iterable[str], prefix: str = PREFIX) -> list[str]:
    """Return our chains, their rules, and the jumps to them."""
    return [
        line
        for line in stands
        if line.startswith((f":{prefix}", f"-A {prefix}")) or f" -j {prefix}" in line
    ]


def _restore(program: str, lines: list[str], *options: str) -> None:
    done = _run([f"{program}-restore", *options, "-w", str(_LOCK_S)], "\n".join((*lines, "")))
    if done.returncode != 0:
        text = " ".join(done.stderr.split()) or f"{program}-restore failed"
        denied = "permission denied" in text.lower()
        raise OSError(errno.EPERM if denied else errno.EIO, text)


def _run(command: list[str], text: str = "") -> "subprocess.CompletedProcess[str]":
    try:
        # It inherits the namespace's name: it may outlive a killed process, and change something then.
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            close_fds=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, f"{command[0]} does not end") from error
