"""A street of neighbours who share, and what its programs do: downloads, statuses, receipts, rules."""

import itertools
import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from kit.waiting import wait_until

from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.neighbours import Neighbourhood
from emu.testbed.programs.gateway import PROXY_PORT
from emu.testbed.programs.sharing import SharingHosts
from emu.testbed.services import Service
from emu.testbed.wiring import SERVER

RATE_BPS = 4e6
HELPERS = 3
PERIOD_S = 10


@dataclass
class Download:
    """A program's download through the proxy, as it came."""

    process: "subprocess.Popen[bytes]"
    times_s: list[float] = field(default_factory=list)
    received_bytes: int = 0
    wrong_bytes: int = 0

    def read_until(self, count: int) -> None:
        assert self.process.stdout is not None
        while self.received_bytes < count:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                break
            self.received_bytes += len(data)
            self.wrong_bytes += len(data) - data.count(0)  # the server's files are holes
            self.times_s.append(time.monotonic())

    def end(self) -> int:
        self.read_until(1 << 60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()

    def longest_pause_s(self, after_s: float) -> float:
        times = [each for each in self.times_s if each >= after_s]
        return max(after - before for before, after in itertools.pairwise(times))


@dataclass
class Street:
    """The neighbourhood, its programs, what of them runs, and each host's rules before any ran."""

    there: Neighbourhood
    hosts: SharingHosts
    helpers: list[Service] = field(default_factory=list)
    request: Service | None = None
    clean: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        helpers = [f"helper-{number}" for number in range(HELPERS)]
        self.clean = {host: self.rules(host) for host in ("requestor", "gateway", *helpers)}

    def download(self, count: int) -> Download:
        proxy = f"socks5h://127.0.0.1:{PROXY_PORT}"
        url = f"http://{SERVER}/bytes/{count}"
        return Download(
            self.there.requestor.popen("curl", "-sS", "-x", proxy, url, stdout=subprocess.PIPE)
        )

    def status(self, host: str = "requestor") -> dict[str, object]:
        found = json.loads(self.hosts.cedos(host, "share", "--json"))
        return dict(found[0]) if found else {}

    def active(self) -> int:
        helpers = self.status().get("helpers", [])
        assert isinstance(helpers, list)
        return sum(each["state"] in ("active", "silent") for each in helpers)

    def wait_for(self, helpers: int, within_s: float = 30.0) -> None:
        until_s = time.monotonic() + within_s
        while self.active() != helpers:
            assert time.monotonic() < until_s, self.status()
            time.sleep(0.3)

    def wait_for_receipts(self, count: int) -> None:
        """Wait until the requestor has receipts for so many bytes, two periods at most."""
        wait_until(
            lambda: sum(self.owed_bytes("requestor").values()) >= count,
            limit_s=2 * PERIOD_S,
            every_s=0.5,
        )

    def owed_bytes(self, host: str) -> dict[tuple[object, object], int]:
        """Return by requestor and helper what the receipts that a host has say was carried."""
        owed = self.receipts(host)["owed"]
        return {
            (each["requestor"], each["helper"]): int(str(each["carried_bytes"])) for each in owed
        }

    def receipts(self, host: str) -> dict[str, list[dict[str, object]]]:
        return dict(json.loads(self.hosts.cedos(host, "share", "receipts", "--json")))

    def rules(self, host: str) -> str:
        namespace = self.hosts.namespace(host)
        parts = [
            namespace.ip("rule"),
            namespace.ip("-4", "addr"),
            namespace.ip("mptcp", "endpoint"),
        ]
        parts += [namespace.ip("-4", "route", "show", "table", "all")]
        parts += [namespace.run("iptables-save").stdout]
        parts += [namespace.run("sysctl", "-a", "-r", r"^net\.ipv4\.conf.*\.forwarding").stdout]
        lines = [line for part in parts for line in part.splitlines()]
        return "\n".join(line for line in lines if not line.startswith(("# ", ":")))


def uplinks(rates_bps: Sequence[float]) -> list[Access]:
    traces = [Trace.constant(rate) for rate in rates_bps]
    return [Access(NetworkKind.CELLULAR, up=each, down=each, rtt_s=0.04) for each in traces]
