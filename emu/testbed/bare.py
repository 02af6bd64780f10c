"""A client and a server with a cable between them, and nginx: for measuring what watches packets.

No Mahimahi, no phones: as fast as the machine. Packets are as on a wire (1500 bytes, no offloads).
"""

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from emu.testbed import kernel, stale
from emu.testbed.netns import Namespace
from emu.testbed.service import Service, greeted

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


class Bare:
    """The two namespaces, as a `with` block.

    Attributes:
        client: its interface is `wlan0`.
        server: what nginx runs in.
        directory: for files that are gone with the block.

    Args:
        addresses: the server's, beside its own (`SERVER`).
    """

    def __init__(self, addresses: Sequence[str] = ()) -> None:
        self._addresses = addresses

    def __enter__(self) -> "Bare":
        stale.remove_stale()
        with ExitStack() as stack:
            self._instance = instance = stale.Instance()
            stack.callback(instance.close)
            self.directory = instance.directory
            self.client = Namespace.create(instance.namespace_name("client"))
            self.server = Namespace.create(instance.namespace_name("server"))
            self._join()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _join(self) -> None:
        self.client.ip(
            *("link", "add", INTERFACE, "type", "veth"),
            *("peer", "name", "eth0", "netns", self.server.name),
        )
        for namespace, interface, address in (
            (self.client, INTERFACE, CLIENT),
            (self.server, "eth0", SERVER),
        ):
            namespace.ip("addr", "add", f"{address}/24", "dev", interface)
            namespace.ip("link", "set", interface, "up")
            with namespace.entered():
                kernel.without_offloads(interface)
        for address in self._addresses:
            self.server.ip("addr", "add", f"{address}/32", "dev", "lo")
            self.client.ip("route", "add", f"{address}/32", "via", SERVER)

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
        """Starts nginx with these `server` blocks; it answers on `port` when this returns.

        Raises:
            EmulationError: it does not.
        """
        config = self.directory / "nginx.conf"
        config.write_text(_CONFIG.format(directory=self.directory, servers=servers))
        nginx = Service(
            self.server,
            *("nginx", "-p", str(self.directory), "-c", str(config), "-e", "stderr"),
            said=self.directory / "nginx.log",
        )
        self._stack.callback(nginx.close)
        self._instance.add_session(nginx.pid)
        nginx.wait_for(lambda: greeted(self.server, SERVER, port), _START_TIMEOUT_S)
