"""The remains of a steering process that is killed in the middle of its work.

Greedy transfers, MPTCP and plain TCP, on both networks of an emulated laptop; a process that steers
them is killed with -9; then `restore` puts the host back. Counted: which transfers still get data, and
which parts of the host's networking are byte for byte as they were before.

    python -m emu.bench.crash DIRECTORY     is that process
"""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from cedos import logs
from cedos.host.steer.mptcp.connection import SubflowUp
from cedos.host.steer.steering import Steering
from cedos.host.steer.undo import restore
from cedos.model import Direction, Strategy, StrategyKind
from emu.bench.switch import ACCESSES, networks
from emu.testbed.access import LTE, WLAN
from emu.testbed.netns import Namespace
from emu.testbed.phones import Laptop
from emu.testbed.programs.bulk import Transfer, server
from emu.testbed.services import LineProcess

_TRANSFERS = 3
_RUN_S = 3.0
_READY_TIMEOUT_S, _END_S = 20.0, 1.0
# Files of /proc/sys that count, and are no settings.
_VOLATILE = ("nf_conntrack_count",)


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Kill and restore, for about half a minute.

    Returns:
        `restored_share`: of the parts of the host's networking. `connections_survived_share`: of
        the transfers, those that went on behind the kill, and behind the restoration where the
        host's own routes can carry them (plain TCP cannot leave the network that is not the host's
        own default). `after_restore_share`: of all transfers.

    Raises:
        EmulationError: the testbed, or the process to be killed.
    """
    with ExitStack() as stack:
        laptop = stack.enter_context(Laptop(*ACCESSES))
        stack.enter_context(server(laptop))
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cedos-bench-")))
        # Take the host's networking as it was, then let another process steer it.
        before = parts(laptop.client)
        process: subprocess.Popen[str] = laptop.client.popen(
            *(sys.executable, "-m", "emu.bench.crash", str(state)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        steering = LineProcess(process, "the process that was to steer")
        stack.callback(steering.close, _END_S)
        steering.answer(_READY_TIMEOUT_S)
        # Begin transfers under each default, so that both networks carry some.
        transfers: dict[str, Transfer] = {}
        for default in (LTE, WLAN):
            steering.tell(default)
            steering.answer(_READY_TIMEOUT_S)
            with laptop.client.entered():
                for number in range(_TRANSFERS):
                    for mptcp in (True, False):
                        kind = "MPTCP" if mptcp else "TCP"
                        transfer = Transfer(Direction.DOWN, mptcp=mptcp)
                        stack.callback(transfer.close)
                        transfers[f"{kind} {default} {number + 1}"] = transfer
        time.sleep(_RUN_S)
        _alive(transfers)
        # Kill it in the midst of steering.
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(_RUN_S)
        killed = _alive(transfers)
        progress(f"killed: {len(killed)} of {len(transfers)} transfers go on")
        # Restore, and compare part by part.
        with laptop.client.entered():
            undone = restore(state)
        for line in (*undone.done, *undone.left):
            progress(line)
        after = parts(laptop.client)
        for name in before:
            if before[name] != after[name]:
                progress(f"not as before: {name}")
        time.sleep(_RUN_S)
        restored = _alive(transfers)
        progress(f"restored: {len(restored)} of {len(transfers)} transfers go on")
        # The host's own routes lead over Wi-Fi: plain TCP over LTE must end with the restoration.
        bound = {name for name in transfers if name.startswith(f"TCP {LTE}")}
        survived = killed & (restored | bound)
        return {
            "restored_share": sum(before[n] == after[n] for n in before) / len(before),
            "connections_survived_share": len(survived) / len(transfers),
            "after_restore_share": len(killed & restored) / len(transfers),
        }


def parts(namespace: Namespace) -> dict[str, str]:
    """Everything that steering may touch, as the usual programs print it."""
    found = {}
    for version in ("4", "6"):
        found[f"rules {version}"] = namespace.ip(f"-{version}", "rule")
        found[f"routes {version}"] = namespace.ip(f"-{version}", "route", "show", "table", "all")
        prefix = f"net.ipv{version}"
        found[f"sysctl {prefix}"] = _sysctls(namespace, prefix)
    for program in ("iptables-save", "ip6tables-save"):
        # Remarks hold the time.
        found[program] = "\n".join(
            line for line in namespace.run(program).stdout.splitlines() if not line.startswith("#")
        )
    for prefix in ("net.mptcp", "net.core", "net.netfilter"):
        found[f"sysctl {prefix}"] = _sysctls(namespace, prefix)
    found["mptcp endpoints"] = namespace.ip("mptcp", "endpoint")
    return found


def _sysctls(namespace: Namespace, prefix: str) -> str:
    printed = namespace.run("sysctl", "-a", "-r", f"^{prefix}", check=False).stdout
    return "\n".join(
        line for line in printed.splitlines() if not any(word in line for word in _VOLATILE)
    )


def _alive(transfers: dict[str, Transfer]) -> set[str]:
    """Return the connections that received something within a second and a half."""
    before = {name: transfer.bytes for name, transfer in transfers.items()}
    time.sleep(1.5)
    return {
        name
        for name, transfer in transfers.items()
        if transfer.broken is None and transfer.bytes > before[name]
    }


async def _steer(state: Path) -> None:
    """Steer until it is killed: each line on standard input is a new default."""
    async with Steering(state) as steering:
        there = networks()
        await steering.networks_changed(there)
        steering.paths_measured({WLAN: (24e6, 0.023), LTE: (12e6, 0.063)})
        steering.set_destination("198.51.100.7", 443, LTE, protocol="tcp")
        moving = asyncio.create_task(_move(steering))
        print("{}", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            steering.set_default(json.loads(line))
            print("{}", flush=True)
        moving.cancel()


async def _move(steering: Steering) -> None:
    """Move every second connection to the other network, as soon as it can be."""
    number = 0
    async for event in steering.events():
        if isinstance(event, SubflowUp) and event.spare:
            number += 1
            if number % 2:
                (path,) = (path for path in event.connection.subflows if path.key == event.key)
                assert path.network is not None
                wanted = Strategy(StrategyKind.SINGLE, (path.network,))
                steering.steer_connection(event.token, wanted)


if __name__ == "__main__":
    logs.configure("warning", "json")  # standard output is for answers
    asyncio.run(_steer(Path(sys.argv[1])))
