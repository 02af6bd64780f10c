"""A client with two interfaces towards one server: `wlan0` before `lte0`."""

import shutil
import tempfile
from pathlib import Path

import pytest
from kit.nginx import nginx

from cedos.apps.prefetch.surroundings import NetworkFacts, View, prices_of
from cedos.model import NetworkKind

SERVER = "198.18.0.2"
_WIRES = {"wlan0": 1, "lte0": 2}
_SERVER = """
server {{ listen {server}:80; root {directory}/www; default_type application/octet-stream;
  location /slow/ {{ alias {directory}/www/; limit_rate {rate}; }}
  location /weak/ {{ alias {directory}/www/; limit_rate {rate}; etag off;
                     add_header Last-Modified ""; if_modified_since off; }}
  location /plain/ {{ alias {directory}/www/; max_ranges 0; limit_rate {rate}; }}
  location /denied {{ return 403; }}
  location /busy {{ return 503; }}
  location /moved {{ return 302 /file; }}
}}
"""


class Wires:
    """The two hosts; it is also what the prefetcher looks at."""

    def __init__(self, make, directory, radio):
        self._radio = radio
        self.client, self.server, self.directory = make("client"), make("server"), directory
        self.server.ip("address", "add", f"{SERVER}/32", "dev", "lo")
        self.up = dict.fromkeys(_WIRES, True)
        for name, number in _WIRES.items():
            peer = ("peer", "name", name, "netns", self.server.name)
            self.client.ip("link", "add", name, "type", "veth", *peer)
            for host, end in ((self.client, 2), (self.server, 1)):
                host.ip("address", "add", f"10.9.{number}.{end}/24", "dev", name)
                host.ip("link", "set", name, "up")
        for name in _WIRES:
            self._route(name)

    def _route(self, name):
        number = _WIRES[name]
        via = ("via", f"10.9.{number}.1", "dev", name, "metric", str(number))
        self.client.ip("route", "add", "default", *via)

    def lose(self, name):
        self.server.ip("link", "set", name, "down")
        self.up[name] = False

    def received_bytes(self, name):
        path = Path(f"/sys/class/net/{name}/statistics/rx_bytes")
        return int(self.client.run("cat", str(path)).stdout) if path else 0

    def counted(self, name):
        line = next(
            line
            for line in self.client.run("cat", "/proc/thread-self/net/dev").stdout.splitlines()
            if line.strip().startswith(f"{name}:")
        )
        return int(line.split(":")[1].split()[0])

    async def view(self):
        kinds = {"wlan0": NetworkKind.WIFI, "lte0": NetworkKind.CELLULAR}
        return View(
            [
                NetworkFacts(name, name, kinds[name], up, name == "lte0", self._radio, 1e7, 0.01)
                for name, up in self.up.items()
            ],
            prices_of([], ["lte0"]),
        )

    def report(self, news):
        self.news = news


@pytest.fixture
def directory():
    """Outside `tmp_path`, which only root may enter: servers have users of their own."""
    made = Path(tempfile.mkdtemp(prefix="cedos-prefetch-", dir="/run"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def wires(make_namespace, directory, make_radio):
    return Wires(make_namespace, directory, make_radio())


@pytest.fixture
def www(wires):
    """nginx at the server, 1 MB/s below `/slow`; the folder that it serves."""
    root = wires.directory / "www"
    root.mkdir()
    server = _SERVER.format(directory=wires.directory, server=SERVER, rate="1m")
    process = nginx(wires.directory, server, where=wires.server)
    yield root
    process.terminate()
    process.wait(10)
