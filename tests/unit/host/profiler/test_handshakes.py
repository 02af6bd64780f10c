import random
from ipaddress import ip_address

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import (
    QuicProtocolVersion,
    encode_quic_retry,
    encode_quic_version_negotiation,
)
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from kit.waiting import lines_of

from cedos.host.profiler import handshakes
from cedos.host.profiler.capture import SNAP_BYTES, program
from cedos.host.profiler.frame import CapturedPacket
from cedos.host.profiler.handshakes import (
    VERSION_1,
    VERSION_2,
    Handshakes,
    InitialReader,
    client_keys,
    crypto_frames,
    initials,
)
from cedos.host.profiler.tls import MAX_BYTES, ClientHello, read_records
from cedos.model import FlowKey
from tests.unit.host.profiler.conftest import crafted_hello, in_records, name_extension

PEER = ("198.51.100.1", 443)


# The published vectors: RFC 9001, appendix A; RFC 9369, appendix A.
CONNECTION = bytes.fromhex("8394c8f03e515708")


HELLO = bytes.fromhex(
    "010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e86804fe3a47f06a2b69484c0000"
    "0413011302010000c000000010000e00000b6578616d706c652e636f6dff01000100000a00080006001d00170018"
    "001000070005 04616c706e000500050100000000003300260024001d00209370b2c9caa47fbabaf4559fedba753d"
    "e171fa71f50f1ce15d43e994ec74d748002b0003020304000d0010000e0403050306030203080408050806002d00"
    "020101001c00024001003900320408ffffffffffffffff05048000ffff07048000ffff080110010480007530090110"
    "0f088394c8f03e51570806048000ffff"
)


def protect(keys, header, number, frames):
    """A packet as its sender makes it; `header` ends with the packet number in 4 bytes."""
    nonce = bytes(a ^ b for a, b in zip(keys.iv, number.to_bytes(12, "big"), strict=True))
    sealed = AESGCM(keys.key).encrypt(nonce, frames, header)
    mask = Cipher(algorithms.AES(keys.header), modes.ECB()).encryptor().update(sealed[:16])
    raw = bytearray(header + sealed)
    raw[0] ^= mask[0] & 0x0F
    for at in range(4):
        raw[len(header) - 4 + at] ^= mask[1 + at]
    return bytes(raw)


def packet(frames, *, version=VERSION_1, to=CONNECTION, keys_of=CONNECTION, number=0):
    """An Initial packet with any frames."""
    first = 0xC3 if version == VERSION_1 else 0xD3
    length = 4 + len(frames) + 16
    header = bytes([first]) + version.to_bytes(4, "big") + bytes([len(to)]) + to + b"\0\0"
    header += (0x4000 | length).to_bytes(2, "big") + number.to_bytes(4, "big")
    return protect(client_keys(version, keys_of), header, number, frames)


def crypto(offset, data):
    return (
        b"\x06"
        + (0x4000 | offset).to_bytes(2, "big")
        + (0x4000 | len(data)).to_bytes(2, "big")
        + data
    )


def client(name="www.Example.org", *, large=False, **options):
    configuration = QuicConfiguration(server_name=name, **options)
    if large:  # as large as key shares of post-quantum key agreement make it
        configuration.alpn_protocols = [f"protocol-{n:0200}" for n in range(7)]
    connection = QuicConnection(configuration=configuration)
    connection.connect(PEER, now=0.0)
    return connection


def sent(connection, now=0.0):
    return [data for data, _ in connection.datagrams_to_send(now=now)]


def read(datagrams):
    reader = InitialReader()
    told = [hello for one in datagrams if (hello := reader.feed(one)) is not None]
    return told, reader


@pytest.mark.parametrize(
    "version", [QuicProtocolVersion.VERSION_1, QuicProtocolVersion.VERSION_2], ids=["v1", "v2"]
)
def test_a_real_client(version):
    connection = client(original_version=version, supported_versions=[version])
    datagrams = sent(connection)
    told, reader = read(datagrams)
    assert told == [ClientHello("www.example.org", ech=False, complete=True)]
    assert reader.complete
    assert reader.feed(datagrams[0]) is None


def test_retry_and_version_negotiation_begin_anew():
    connection = client(large=True)
    first = sent(connection)
    server = b"\x07" * 8
    retry = encode_quic_retry(
        version=QuicProtocolVersion.VERSION_1,
        source_cid=server,
        destination_cid=connection.host_cid,
        original_destination_cid=connection.original_destination_connection_id,
        retry_token=b"token" * 20,
    )
    connection.receive_datagram(retry, PEER, now=0.1)
    second = sent(connection, 0.1)
    assert [one.destination for one in initials(second[0])] == [server]
    assert read(second)[0][-1].name == "www.example.org"
    # Half of the first try, all of the second.
    told, reader = read([first[0], *second])
    assert told[-1] == ClientHello("www.example.org", ech=False, complete=True)
    assert reader.complete

    connection = client(
        original_version=QuicProtocolVersion.VERSION_1,
        supported_versions=[QuicProtocolVersion.VERSION_1, QuicProtocolVersion.VERSION_2],
        large=True,
    )
    first = sent(connection)
    refusal = encode_quic_version_negotiation(
        source_cid=connection.original_destination_connection_id,
        destination_cid=connection.host_cid,
        supported_versions=[QuicProtocolVersion.VERSION_2],
    )
    assert list(initials(refusal)) == list(initials(retry)) == []
    connection.receive_datagram(refusal, PEER, now=0.1)
    second = sent(connection, 0.1)
    assert {one.version for data in second for one in initials(data)} == {VERSION_2}
    assert read([first[0], *second])[0][-1].name == "www.example.org"


def test_frames_shuffled_and_mixed():
    draw = random.Random(5)
    pieces = [crypto(at, HELLO[at : at + 13]) for at in range(0, len(HELLO), 13)]
    for _ in range(20):
        draw.shuffle(pieces)
        acknowledged = b"\x02\x05\x00\x01\x02\x00\x01\x03\x05\x00\x00\x02\x01\x01\x01"
        mixed = b"".join(piece + b"\x01" + bytes(draw.randrange(5)) for piece in pieces)
        assert read([packet(acknowledged + mixed)])[0][-1].complete


def test_hostile_frames_are_bounded():
    huge = b"\xff" * 8
    for frames in (
        b"\x06" + huge + huge + b"x",
        b"\x02\x00\x00" + huge + bytes(900),
        b"\x06\x40" + bytes(30),
        b"\x1c" + crypto(0, HELLO),
        bytes(1200),
    ):
        assert read([packet(frames)])[0] == []
    # A piece that says it is longer than it is ends where the packet does.
    assert read([packet(b"\x06\x00" + huge + HELLO)])[0][-1].name == "example.com"
    reader = InitialReader()
    endless = b"\x01\xff\xff\xff" + bytes(1000)
    for number in range(60):
        reader.feed(packet(crypto(number * 1000, endless[:1000]), number=number))
    (attempt,) = reader._attempts
    assert len(attempt.stream.prefix) <= MAX_BYTES


def test_work_is_bounded(monkeypatch):
    opened = []
    reader = InitialReader()
    original = AESGCM.decrypt

    class Counted:
        def __init__(self, key):
            self._inner = AESGCM(key)

        def decrypt(self, *given):
            opened.append(1)
            return original(self._inner, *given)

    monkeypatch.setattr("cryptography.hazmat.primitives.ciphers.aead.AESGCM", Counted)
    draw = random.Random(1)
    for _ in range(500):
        to = draw.randbytes(8)
        reader.feed(packet(crypto(5, b"x"), to=to, keys_of=to) * 2)
    assert 0 < len(opened) < 60
    assert len(reader._attempts) <= 4


@given(st.binary(max_size=400))
def test_garbage_behind_the_encryption_never_raises(frames):
    read([packet(frames.ljust(30, b"\0"))])
    assert all(0 <= offset < MAX_BYTES for offset, _ in crypto_frames(frames))


@pytest.mark.parametrize("frame", [b"\6\0\0", b"\6\x41\1\1x"])
def test_a_packet_of_tiny_frames_is_read_in_part(frame):
    """Read 256 of them: all those of a packet of 4 KB took 6 ms."""
    most = packet(frame * (4000 // len(frame)))
    assert lines_of(lambda: InitialReader().feed(most)) < 256 * 100


@given(st.integers(0, 1199), st.integers(1, 255))
def test_a_damaged_packet_is_refused(at, change):
    raw = bytearray(packet(crypto(0, HELLO).ljust(1162, b"\0")))
    raw[at % len(raw)] ^= change
    assert read([bytes(raw)])[0] == []


def test_the_filter_knows_initials(run_bpf):
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
    from scapy.packet import Raw

    code = program()
    datagrams = sent(client())
    second = QuicProtocolVersion.VERSION_2
    datagrams += sent(client(original_version=second, supported_versions=[second]))
    first = packet(crypto(0, HELLO))
    handshake, early, retry = (bytes([byte]) + first[1:] for byte in (0xE3, 0xD3, 0xF3))
    short, other = b"\x43" + first[1:], first[:1] + b"\xff\0\0\x1d" + first[5:]
    for network in (IP(), IP(options=b"\x01" * 8), IPv6(), IPv6() / IPv6ExtHdrDestOpt()):

        def raw(payload, network=network, port=443, source=5):
            return bytes(network / UDP(sport=source, dport=port) / Raw(payload))

        for good in (*datagrams, first):
            assert run_bpf(code, raw(good), 4) == SNAP_BYTES
            assert run_bpf(code, raw(good), 0) == 0  # somebody else's
            assert run_bpf(code, raw(good, port=53), 4) == 0
            assert run_bpf(code, raw(good, port=5, source=443), 4) == 0
        for bad in (handshake, early, retry, short, other, b"", b"\xc3", bytes(1200)):
            assert run_bpf(code, raw(bad), 4) == 0


KEY = FlowKey(ip_address("192.0.2.1"), 5000, ip_address("198.51.100.1"), 443)


START = 4_294_966_900  # the numbers wrap within the hello


def hello(key_share=1216):
    name, ech = name_extension(b"www.example.org"), (0xFE0D, bytes(64))
    return crafted_hello((0x33, b"\x5a" * key_share), name, ech, (0x15, bytes(256)))


def segment(raw, at, size, key=KEY):
    number = (START + at) % (1 << 32)
    return CapturedPacket(key, True, raw[at : at + size], number, 1, segment=number)


WHOLE = ClientHello("www.example.org", ech=True, complete=True)


@pytest.mark.parametrize("raw", [hello(), in_records(hello(), 200), hello(key_share=9000)])
@pytest.mark.parametrize("size", [300, 536, 1200])
def test_over_many_segments(raw, size):
    hellos = Handshakes()
    first = hellos.begin(segment(raw, 0, size))
    assert first is None or first.name is None
    told = [hellos.proceed(segment(raw, at, size)) for at in range(size, len(raw), size)]
    assert told[-1] == WHOLE
    assert len(hellos) == 0


def test_the_name_is_told_before_the_hello_is_complete():
    raw = hello()
    hellos = Handshakes()
    hellos.begin(segment(raw, 0, 1200))
    assert hellos.proceed(segment(raw, 1200, 100)) == ClientHello(
        "www.example.org", ech=False, complete=False
    )
    assert hellos.proceed(segment(raw, 1300, 2000)) == WHOLE


def test_tiny_pieces_are_read_a_few_times_and_not_each(monkeypatch):
    read = []

    def counting(data):
        read.append(len(data))
        return read_records(data)

    monkeypatch.setattr(handshakes, "read_records", counting)
    raw = b"\x16\x03\x01\x3f\xf0\x01\x00\x3f\xec\x03\x03" + bytes(MAX_BYTES)
    hellos = Handshakes()
    hellos.begin(segment(raw, 0, 6))
    for at in range(6, MAX_BYTES):
        hellos.proceed(segment(raw, at, 1))
    assert sum(read) < 40 * MAX_BYTES


def test_others_segments_and_other_places_are_not_taken():
    raw = hello()
    hellos = Handshakes()
    hellos.begin(segment(raw, 0, 1200))
    other = FlowKey(KEY.local, 5001, KEY.remote, 443)
    assert hellos.proceed(segment(raw, 1200, 900, other)) is None
    far = CapturedPacket(KEY, True, raw[1200:], segment=(START + 70_000) % (1 << 32))
    assert hellos.proceed(far) is None
    before = CapturedPacket(KEY, True, raw[1200:], segment=START - 70_000)
    assert hellos.proceed(before) is None
    hellos.forget(KEY)
    assert hellos.proceed(segment(raw, 1200, 900)) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 32), st.binary(max_size=80))))
def test_hostile_segments_are_bounded(steps):
    hellos = Handshakes()
    for port, number, data in steps:
        key = FlowKey(KEY.local, port, KEY.remote, 443)
        hellos.begin(CapturedPacket(key, True, b"\x16\x03\x01" + data, segment=number))
        hellos.proceed(CapturedPacket(key, True, data * 50, segment=number + 20))
        hellos.initial(CapturedPacket(key, True, b"\xc3\0\0\0\1" + data))


def test_handshakes_under_way_are_bounded():
    hellos, raw = Handshakes(), hello()
    for port in range(1000):
        key = FlowKey(KEY.local, port, KEY.remote, 443)
        hellos.begin(segment(raw, 0, 1200, key))
        hellos.initial(CapturedPacket(key, True, raw))
    assert len(hellos) == 512
