"""Real QUIC over a real link: of all its packets only the client's Initials reach the profiler."""

import asyncio
import datetime
import json
import ssl
import threading

import pytest
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamDataReceived
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cedos.host.profiler.capture import open_capture
from cedos.host.profiler.profiler import Profiler
from emu.testbed import netns

ADDRESSES = {4: "10.9.0.2", 6: "fd09::2"}
DOWN_BYTES, UP_BYTES = 1_500_000, 500_000


class Echo(QuicConnectionProtocol):
    """Answers the end of an upload with a download."""

    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived) and event.end_stream:
            self._quic.send_stream_data(event.stream_id, bytes(DOWN_BYTES), end_stream=True)
            self.transmit()


def certificate(folder):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "example")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def packets(pair):
    (link,) = json.loads(pair.client.ip("-json", "-stats", "link", "show", "wlan0"))
    return int(link["stats64"]["rx"]["packets"]) + int(link["stats64"]["tx"]["packets"])


@pytest.mark.parametrize("family", [4, 6])
def test_bulk_quic_stays_in_the_kernel(pair, drain, tmp_path, family):
    for namespace, interface in ((pair.client, "wlan0"), (pair.server, "eth0")):
        with namespace.entered():
            netns.without_offloads(interface)
    with pair.client.entered():
        capture = open_capture("wlan0")
    ready, done = threading.Event(), threading.Event()

    async def run_server():
        configuration = QuicConfiguration(is_client=False, alpn_protocols=["echo"])
        configuration.load_cert_chain(*certificate(tmp_path))
        server = await serve(
            ADDRESSES[family], 443, configuration=configuration, create_protocol=Echo
        )
        ready.set()
        while not done.is_set():
            await asyncio.sleep(0.05)
        server.close()

    def in_server():
        with pair.server.entered():
            asyncio.run(run_server())

    async def transfer():
        configuration = QuicConfiguration(
            alpn_protocols=["echo", *(f"protocol-{n:0200}" for n in range(7))],
            server_name="big.example.org",
            verify_mode=ssl.CERT_NONE,
        )
        async with connect(ADDRESSES[family], 443, configuration=configuration) as client:
            reader, writer = await client.create_stream()
            writer.write(bytes(UP_BYTES))
            writer.write_eof()
            return len(await reader.read())

    thread = threading.Thread(target=in_server, daemon=True)
    thread.start()
    try:
        assert ready.wait(20)
        with capture:
            before = packets(pair)
            with pair.client.entered():
                assert asyncio.run(transfer()) == DOWN_BYTES
            captured = drain(capture, at_least=1)
            passed = capture.statistics().passed
            total = packets(pair) - before
    finally:
        done.set()
        thread.join(20)
    assert total > (DOWN_BYTES + UP_BYTES) / 1500
    # Two for the hello, and perhaps acknowledgements of the server's Initials.
    assert 2 <= passed <= 8
    print(f"{passed} of {total} packets")
    assert {(one.key.protocol, one.key.remote_port, one.outgoing) for one in captured} == {
        ("udp", 443, True)
    }
    profiler = Profiler()
    told = [event for one in captured for event in profiler.observe(one, 1.0)]
    assert [event.server_name for event in told] == ["big.example.org"]
