"""A gateway that fetches, a client of it, and a real nginx as the origin, over loopback."""

import asyncio
import os
import socket
import time

import pytest
from kit.nginx import certificate, nginx

from cedos.apps.files.getting import Getting
from cedos.apps.files.objects.object_fetcher import ObjectFetcher
from cedos.apps.files.objects.object_serving import ObjectServing
from cedos.apps.files.objects.object_store import ObjectStore
from cedos.apps.files.partial import Partial
from cedos.apps.files.server_link import ServerLink
from cedos.proxy.gateway.gateway import LIMITS, Gateway, GatewaySettings
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets.sockets import connect

SERVER = """
server {{
  listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl;
  ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
  root {folder}/www;
  location /fresh/ {{ alias {folder}/www/; add_header Cache-Control max-age=600; }}
  location /secret/ {{ alias {folder}/www/; add_header Cache-Control no-store; }}
  location /slow/ {{ alias {folder}/www/; limit_rate 4m; }}
  location /pieces/ {{ alias {folder}/www/; ssi on; ssi_types *; }}
  location /moved/ {{ rewrite ^/moved/(.*) /fresh/$1 redirect; }}
  location /down/ {{ return 302 http://127.0.0.1:{port}/file; }}
  location /round/ {{ return 302 /round/; }}
}}
"""


def free_ports():
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return one.getsockname()[1], two.getsockname()[1]


class Fetching:
    """`get` a URL by `url(...)`; `requests` are the origin's lines of status, path and range."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "www").mkdir()
        self.port, self.tls_port = free_ports()
        certificate(folder, "127.0.0.1")
        self.me, self.client = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
        self.invited = {self.client.public: "laptop"}

    async def start(self, *, local=True, most_bytes=1 << 30):
        self.start_nginx()
        settings = GatewaySettings(("127.0.0.1", 0), local=local)
        rules = settings.rules()

        def refused(address, port):
            try:
                rules.check(address, port)
            except Exception as error:
                return str(error)
            return ""

        self.fetcher = ObjectFetcher(ObjectStore(self.folder / "objects", most_bytes), refused)
        self.gateway = Gateway(
            settings,
            self.me,
            self.invited.get,
            lambda one: ObjectServing(one, self.fetcher, lambda: one.peer_key in self.invited),
        )
        await self.gateway.open()
        self.running = asyncio.create_task(self.gateway.run())

    def start_nginx(self):
        server = SERVER.format(folder=self.folder, port=self.port, tls_port=self.tls_port)
        log = "$status $request_uri $http_range"
        self.nginx = nginx(self.folder, server, log=log)

    def stop_nginx(self):
        self.nginx.kill()
        self.nginx.wait(20)

    def publish(self, data, name="file"):
        (self.folder / "www" / name).write_bytes(data)
        os.utime(self.folder / "www" / name, (time.time() - 60, time.time() - 60))

    def url(self, path, *, tls=False):
        port = self.tls_port if tls else self.port
        return f"http{'s' * tls}://127.0.0.1:{port}{path}"

    @property
    def requests(self):
        return (self.folder / "access.log").read_text().splitlines()

    async def connect(self, who=None):
        return await connect(
            self.gateway.address,
            server_key=self.me.public,
            key=who or self.client,
            limits=LIMITS,
            timeout_s=5,
        )

    async def get(self, url, name="got", who=None):
        """As `cedos-get` does. TransferError: why not."""
        target = self.folder / name
        target.unlink(missing_ok=True)
        partial = Partial(target, url)
        link = ServerLink(lambda: self.connect(who))
        try:
            await asyncio.wait_for(Getting(url, partial, link, 20.0).run(), 40)
        finally:
            await link.close()
            partial.close()
        return target.read_bytes()

    async def close(self):
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.gateway.close()
        await self.fetcher.close()
        self.stop_nginx()


@pytest.fixture
async def fetching(tmp_path):
    made = Fetching(tmp_path)
    yield made
    await made.close()
