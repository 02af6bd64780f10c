"""The server side of the testbed: nginx for downloads and uploads, dnsmasq for names.

Both are Debian's own programs, unmodified. nginx runs under `mptcpize`, so one listening port takes
MPTCP and plain TCP. Files to download are holes, which take no disk. nginx writes uploads to a tmpfs of
its own, deletes them at once, and answers only after the last byte.
"""

import re
import socketserver
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from emu.testbed.neighbours import Neighbourhood
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.services import Service, Started, accepts

HTTP_PORT = 80
HTTPS_PORT = 443
DNS_PORT = 53
SERVER_NAME = "server.example"
PORTAL_BODY = "NetworkManager is online"
# A test page for captive portals, as the shipped configuration has one on the internet.
PORTAL_URL = f"http://{SERVER}/nm"
LARGEST_BYTES = 10**12
_START_TIMEOUT_S = 10.0
# Large enough for any upload of an experiment. Memory is taken only when it is used.
_UPLOAD_SPACE = "4g"
_CONFIG = """
daemon off;
user nobody nogroup;
pid {directory}/nginx.pid;
worker_processes 1;
error_log {directory}/error.log;
events {{ worker_connections 8192; }}
http {{
  default_type application/octet-stream;
  log_format lines escape=json '{{"ended_unix_s":$msec,"time_s":$request_time,"client":"$remote_addr",'
    '"client_port":$remote_port,"method":"$request_method","uri":"$request_uri","status":$status,'
    '"received_bytes":$request_length,"sent_bytes":$bytes_sent}}';
  access_log {log};
  # Header and body leave in one write: over MPTCP, a cork costs 200 ms and two writes a round trip.
  sendfile off;
  output_buffers 4 256k;
  keepalive_timeout 75s;
  keepalive_requests 1000000;
  reset_timedout_connection on;
  client_max_body_size 0;
  client_body_temp_path {directory}/uploads;
  proxy_temp_path {directory}/proxy;
  {certificate}
  server {{
    listen {http} backlog=4096;
    {tls}
    server_name {name};
    root {directory}/www;
    # What a test page for captive portals says.
    location = /nm {{ default_type text/plain; return 200 "{portal}\n"; }}
    # A size that was not requested before: the file is made, then served as any other.
    location /bytes/ {{ try_files $uri @make; }}
    location @make {{ proxy_pass http://unix:{directory}/maker.sock; }}
    location /made/ {{ internal; alias {directory}/www/bytes/; }}
    # The body is read to its end before the answer is requested.
    location /upload/ {{
      proxy_pass http://unix:{directory}/done.sock;
      proxy_method GET;
      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
    }}
  }}
  server {{
    listen unix:{directory}/done.sock;
    access_log off;
    location / {{ return 200; }}
  }}
  {sites}
}}
"""
_CERTIFICATE = """ssl_certificate {directory}/tls.crt;
  ssl_certificate_key {directory}/tls.key;
  ssl_protocols TLSv1.2 TLSv1.3;"""
# The tmpfs belongs to nginx alone and vanishes with its last process.
_START = """set -e
mount -t tmpfs -o size={space},mode=755 cedos-uploads {directory}/uploads
exec {wrap} nginx -p {directory} -c {directory}/nginx.conf -e {directory}/error.log
"""


class Servers(Started):
    """nginx on port 80 (and 443) and dnsmasq on port 53 of the laptop's server, as a `with` block.

    - `GET /bytes/N` answers N bytes, any N up to 10^12, with ranges and keep-alive.
    - `PUT` or `POST /upload/NAME` takes any body and answers 200 after its last byte.
    - any name has the address 198.51.100.1 (an A record), unless `addresses` says otherwise.
    """

    def __init__(
        self,
        laptop: Laptop | Neighbourhood,  # whose server it is; leave this block before the laptop's
        *,
        # Also listen on 443, with a self-signed certificate made now (`certificate`), which is good
        # for all names in `addresses` too.
        tls: bool = False,
        access_log: bool = False,  # write one JSON object per request to `access_log`
        dns: bool = True,  # also answer DNS queries
        mptcp: bool = True,  # whether nginx speaks MPTCP; most servers do not
        # Further lines for the `http` block of nginx (see `emu.workloads.web.corpus`).
        sites: str = "",
        # Addresses of names, which must be among the server's.
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        self._laptop = laptop
        self._tls = tls
        self._dns = dns
        self._mptcp = mptcp
        self._log = access_log
        self._sites = sites
        self._addresses = dict(addresses or {})
        self._services: list[Service] = []
        self._maker: _Maker | None = None

    @property
    def directory(self) -> Path:
        return self._laptop.directory / "servers"

    @property
    def certificate(self) -> Path:
        """The certificate to trust, in PEM."""
        return self.directory / "tls.crt"

    @property
    def access_log(self) -> Path:
        """The requests so far, one JSON object per line, in the order of their ends."""
        return self.directory / "access.jsonl"

    def make_size(self, size_bytes: int) -> str:
        """Make the file of `/bytes/N` before it is requested, and return its URL."""
        _hole(self.directory / "www" / "bytes", size_bytes)
        return f"http://{SERVER}/bytes/{size_bytes}"

    def close(self) -> None:
        for service in self._services:
            service.close()
        self._services.clear()
        if self._maker is not None:
            self._maker.close()
            self._maker = None

    def _start(self) -> None:
        for part in ("www/bytes", "uploads", "proxy"):
            (self.directory / part).mkdir(parents=True, exist_ok=True)
        # Sockets of a killed run would be in the way.
        for name in ("maker.sock", "done.sock"):
            (self.directory / name).unlink(missing_ok=True)
        tls = certificate = ""
        if self._tls:
            self._make_certificate()
            tls = f"listen {HTTPS_PORT} ssl backlog=4096;"
            certificate = _CERTIFICATE.format(directory=self.directory)
        (self.directory / "nginx.conf").write_text(
            _CONFIG.format(
                directory=self.directory,
                log=f"{self.access_log} lines" if self._log else "off",
                http=HTTP_PORT,
                tls=tls,
                certificate=certificate,
                name=SERVER_NAME,
                portal=PORTAL_BODY,
                sites=self._sites,
            )
        )
        # nginx asks the maker for sizes that have no file yet, so it must be there first.
        self._maker = _Maker(self.directory)
        wrap = "mptcpize run" if self._mptcp else ""
        script = _START.format(space=_UPLOAD_SPACE, directory=self.directory, wrap=wrap)
        nginx = self._launch("nginx", "unshare", "--mount", "sh", "-c", script)
        dnsmasq = None
        if self._dns:
            command = "dnsmasq --keep-in-foreground --conf-file=/dev/null --no-resolv --no-hosts"
            command += f" --port={DNS_PORT} --listen-address={SERVER} --bind-interfaces"
            command += f" --address=/#/{SERVER} --cache-size=0 --user=root --pid-file="
            names = [f"--host-record={name},{at}" for name, at in self._addresses.items()]
            dnsmasq = self._launch("dnsmasq", *command.split(), "--log-facility=-", *names)
        # nginx writes its pid once it has its ports. Before that, another server could answer on the
        # port.
        pid = self.directory / "nginx.pid"
        nginx.wait_for(lambda: pid.exists() and self._accepts(HTTP_PORT), _START_TIMEOUT_S)
        if dnsmasq is not None:
            dnsmasq.wait_for(lambda: self._accepts(DNS_PORT), _START_TIMEOUT_S)

    def _accepts(self, port: int) -> bool:
        return accepts(self._laptop.server, SERVER, port)

    def _launch(self, name: str, *command: str) -> Service:
        output, errors = self.directory / f"{name}.out", self.directory / "error.log"
        service = Service(self._laptop.server, *command, output=output, logs=(errors,))
        self._services.append(service)
        return service

    def _make_certificate(self) -> None:
        command = (
            "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 30"
        )
        command += f" -keyout {self.directory}/tls.key -out {self.directory}/tls.crt"
        names = ",".join(f"DNS:{name}" for name in (SERVER_NAME, *self._addresses))
        command += f" -subj /CN={SERVER_NAME} -addext subjectAltName={names},IP:{SERVER}"
        self._laptop.server.run(*command.split())


def _hole(directory: Path, size_bytes: int) -> None:
    if not 0 <= size_bytes <= LARGEST_BYTES:
        raise ValueError(f"{size_bytes} bytes: 0 to {LARGEST_BYTES} are served")
    file = directory / str(size_bytes)
    if not file.exists():
        # Make the file under another name first: nginx never sees half of it. A hole takes no room.
        new = directory / f".{size_bytes}.{threading.get_ident()}"
        with new.open("wb") as hole:
            hole.truncate(size_bytes)
        new.replace(file)


class _Maker(socketserver.ThreadingUnixStreamServer):
    """A maker of files: when a size is first requested, it makes the file and tells nginx to serve it."""

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        self.sizes = directory / "www" / "bytes"
        path = directory / "maker.sock"
        super().__init__(str(path), _MakerHandler)
        # nginx's worker is nobody.
        path.chmod(0o666)
        self._thread = threading.Thread(target=self.serve_forever, name="maker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _MakerHandler(socketserver.StreamRequestHandler):
    rfile: IO[bytes]  # type: ignore[assignment]
    timeout = 5

    def handle(self) -> None:
        assert isinstance(self.server, _Maker)
        line = self.rfile.readline(4096)
        while self.rfile.readline(65536).strip():
            pass
        # nginx serves the file itself when the answer names it (X-Accel-Redirect).
        asked = re.fullmatch(rb"\S+ /bytes/([1-9][0-9]{0,12}|0)(?:\?\S*)? HTTP/1\.[01]\s*", line)
        answer = b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        if asked is not None and int(asked[1]) <= LARGEST_BYTES:
            _hole(self.server.sizes, int(asked[1]))
            answer = b"HTTP/1.0 200 OK\r\nX-Accel-Redirect: /made/%s\r\n\r\n" % asked[1]
        self.wfile.write(answer)
