"""A street of neighbours who share: its programs, receipts and rules."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kit.waiting import wait_until

from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.neighbours import Neighbourhood
from emu.testbed.programs.gateway import Download, SharingHosts
from emu.testbed.services import Service

RATE_BPS = 4e6
HELPERS = 3
PERIOD_S = 10


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

    def begin(
        self, offers: Sequence[Sequence[str]] = ((),) * HELPERS, *wish: str, rate: str = "4Mbit"
    ) -> None:
        """Begin all helpers, the requestor and its proxy; return once it has all helpers."""
        with ThreadPoolExecutor() as pool:  # each waits for its program
            helpers = [
                pool.submit(self.hosts.help, number, *offer, rate=rate)
                for number, offer in enumerate(offers)
            ]
            self.request = self.hosts.request(*wish)
            self.hosts.forward()
            self.helpers = [each.result() for each in helpers]
        self.wait_for(HELPERS)

    def download(self, count: int) -> Download:
        return self.hosts.download(count)

    def active(self) -> int:
        return self.hosts.active()

    def wait_for(self, helpers: int) -> None:
        self.hosts.wait_for_helpers(helpers)

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
        return self.hosts.receipts(host)

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
