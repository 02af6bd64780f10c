"""Namespaces with wires between them: a client and a server, a cable of a given rate, and nginx.

Without Mahimahi and phones they are as fast as the machine, to measure programs that watch packets.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyroute2 import IPRoute

from emu.testbed import netns, stale
from emu.testbed.netns import Namespace, entered
from emu.testbed.services import Service, Started, accepts


@dataclass(frozen=True, slots=True)
class End:
    """An end of a wire; with an address (`10.0.0.1/24`) it is up, without one it stays down."""

    host: Namespace
    interface: str
    address: str = ""


@contextmanager
def netlink_in(path: Path) -> Iterator[IPRoute]:
    with entered(path):
        netlink = IPRoute()
    try:
        yield netlink
    finally:
        netlink.close()


def connect(one: End, other: End, *, offloads: bool = False) -> None:
    """Make a wire (a veth pair); without offloads its packets have at most 1500 bytes, as on Ethernet."""
    with netlink_in(one.host.path) as netlink, other.host.path.open("rb") as there:
        # The other end of the pair is made in its namespace at once.
        peer = {"ifname": other.interface, "net_ns_fd": there.fileno()}
        netlink.link("add", ifname=one.interface, kind="veth", peer=peer)
    for end in (one, other):
        if end.address:
            address, _, length = end.address.partition("/")
            with netlink_in(end.host.path) as netlink:
                (index,) = netlink.link_lookup(ifname=end.interface)
                netlink.addr("add", index=index, address=address, prefixlen=int(length))
                netlink.link("set", index=index, state="up")
        # With offloads there would be packets of 64 kB, which no network carries.
        if not offloads:
            with end.host.entered():
                netns.without_offloads(end.interface)


def add_address(host: Namespace, *addresses: str) -> None:
    with netlink_in(host.path) as netlink:
        (loopback,) = netlink.link_lookup(ifname="lo")
        for address in addresses:
            netlink.addr("add", index=loopback, address=address, prefixlen=32)


def limit_rate(end: End, rate: str) -> None:
    shaper = f"tc qdisc add dev {end.interface} root tbf rate {rate} burst 32kb latency 50ms"
    end.host.run(*shaper.split())


CLIENT, SERVER = "198.18.0.1", "198.18.0.2"
INTERFACE = "wlan0"
_START_TIMEOUT_S = 10.0
_CONFIG = """
daemon off; master_process off; user root; pid {directory}/nginx.pid; error_log stderr;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000; client_max_body_size 0;
  client_body_temp_path {directory}/uploads;
{servers}
}}
"""


class Hosts(Started):
    """The two namespaces, as a `with` block, without a wire between them.

    `directory` is removed with them.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def _start(self) -> None:
        self.instance = self._stack.enter_context(stale.registered())
        self.directory = self.instance.directory
        self.client = self.instance.namespace("client")
        self.server = self.instance.namespace("server")

    def close(self) -> None:
        self._stack.close()

    def certificate(self) -> str:
        """Make a self-signed certificate and return nginx's directives that use it."""
        at = self.directory
        command = (
            "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 30"
            f" -keyout {at}/tls.key -out {at}/tls.crt -subj /CN=example"
        )
        self.server.run(*command.split())
        return f"ssl_certificate {at}/tls.crt; ssl_certificate_key {at}/tls.key;"

    def serve(self, servers: str, port: int = 80) -> None:
        """Start nginx with these `server` blocks, and wait until it answers on `port`.

        EmulationError: it does not answer.
        """
        config = self.directory / "nginx.conf"
        config.write_text(_CONFIG.format(directory=self.directory, servers=servers))
        nginx = Service(
            self.server,
            *("nginx", "-p", str(self.directory), "-c", str(config), "-e", "stderr"),
            output=self.directory / "nginx.log",
        )
        self._stack.callback(nginx.close)
        self.instance.add_session(nginx.pid)
        nginx.wait_for(lambda: accepts(self.server, SERVER, port), _START_TIMEOUT_S)


@contextmanager
def cabled(addresses: Sequence[str] = ()) -> Iterator[Hosts]:
    """Connect a client's `wlan0` to a server, which has these `addresses` beside `SERVER`."""
    with Hosts() as hosts:
        connect(
            End(hosts.client, INTERFACE, f"{CLIENT}/24"), End(hosts.server, "eth0", f"{SERVER}/24")
        )
        add_address(hosts.server, *addresses)
        for address in addresses:
            hosts.client.ip("route", "add", f"{address}/32", "via", SERVER)
        yield hosts
