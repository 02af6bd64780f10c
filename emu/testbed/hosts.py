"""A client and a server, with a cable between them or what else leads from one to the other, and nginx.

No Mahimahi, no phones: as fast as the machine, for measuring what watches packets.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from emu.testbed import stale, wires
from emu.testbed.programs.service import Service, accepts
from emu.testbed.started import Started
from emu.testbed.wires import End

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
    """The two namespaces, as a `with` block, with nothing between them yet.

    `directory` goes with them.
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
        """Makes a self-signed one; nginx's directives that use it."""
        at = self.directory
        command = (
            "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 30"
            f" -keyout {at}/tls.key -out {at}/tls.crt -subj /CN=example"
        )
        self.server.run(*command.split())
        return f"ssl_certificate {at}/tls.crt; ssl_certificate_key {at}/tls.key;"

    def serve(self, servers: str, port: int = 80) -> None:
        """Starts nginx with these `server` blocks.

        Returns when it answers on `port`, else EmulationError.
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
    """A client whose `wlan0` leads to a server, which has these `addresses` beside `SERVER`."""
    with Hosts() as hosts:
        wires.connect(
            End(hosts.client, INTERFACE, f"{CLIENT}/24"), End(hosts.server, "eth0", f"{SERVER}/24")
        )
        wires.add_address(hosts.server, *addresses)
        for address in addresses:
            hosts.client.ip("route", "add", f"{address}/32", "via", SERVER)
        yield hosts
