"""Records: whatever happens to them on the way, what comes out is a prefix of what went in."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.session.protocol import crypto
from cedos.session.protocol.channel import RECORD_BYTES
from cedos.session.protocol.crypto import RecordKey, Suite
from cedos.session.protocol.handshake.messages import HEADER, HEADER_BYTES, MessageKind, frame
from cedos.session.protocol.handshake.outcome import FailureKind
from cedos.session.protocol.handshake.set_up import SetUpOptions

PROTECTED = [SetUpOptions(), SetUpOptions(hardware_aes=False)]


def pair(make_hosts, ask):
    return make_hosts(allow_clear=True).connected(ask)


@given(
    texts=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 400), max_size=40),
    ask=st.sampled_from([*PROTECTED, SetUpOptions(clear=True)]),
)
def test_records_come_whole_and_in_order_however_tcp_cuts_them(make_hosts, texts, cuts, ask):
    client, server = pair(make_hosts, ask)
    flat = b"".join(b"".join(client.send([text[:1], text[1:]])) for text in texts)
    got = []
    for cut in [*cuts, len(flat)]:
        got += [bytes(record) for record in server.receive(flat[:cut], 0.0)]
        flat = flat[cut:]
    assert got == texts
    assert server.failure is None


@given(data=st.data(), ask=st.sampled_from(PROTECTED))
def test_a_tampered_stream_gives_a_prefix_and_ends_the_path(make_hosts, data, ask):
    client, server = pair(make_hosts, ask)
    texts = [bytes([number]) * data.draw(st.integers(1, 40)) for number in range(1, 7)]
    packets = [b"".join(client.send([text])) for text in texts]
    at = data.draw(st.integers(0, 5))
    what = data.draw(st.sampled_from(["replay", "drop", "swap", "flip", "cut", "forge"]))
    match what:
        case "replay":
            packets.insert(at + 1, packets[data.draw(st.integers(0, at))])
        case "drop":
            del packets[at]
        case "swap":
            packets[at], packets[at - 1] = packets[at - 1], packets[at]
        case "flip":
            bit = data.draw(st.integers(0, 8 * len(packets[at]) - 1))
            altered = bytearray(packets[at])
            altered[bit // 8] ^= 1 << bit % 8
            packets[at] = bytes(altered)
        case "cut":
            packets[at] = packets[at][: data.draw(st.integers(0, len(packets[at]) - 1))]
        case "forge":
            packets.insert(at, frame(MessageKind.RECORD, random.Random(at).randbytes(40)))
    stream = b"".join(packets)
    got = []
    size = data.draw(st.integers(1, len(stream)))
    for start in range(0, len(stream), size):
        got += [bytes(r) for r in server.receive(stream[start : start + size], 0.0)]
    assert got == texts[: len(got)]
    if server.failure is not None:
        assert server.failure.kind is FailureKind.GARBLED
        assert not server.failure.authenticated
        assert server.receive(b"".join(client.send([b"more"])), 0.0) == []
    else:  # the end is missing, or waited for
        assert len(got) < len(texts)


def test_a_record_of_another_connection_or_direction_is_refused(hosts):
    client, server = hosts.connected()
    packet = b"".join(client.send([b"words"]))
    assert client.receive(packet, 0.0) == []
    assert client.failure is not None
    _, other = hosts.resumed(server.opened.credentials)
    assert other.receive(packet, 0.0) == []
    assert other.failure is not None


def test_absurd_lengths_are_refused_before_anything_is_kept(hosts):
    for length in (0, 16, RECORD_BYTES + 17, 0xFFFFFF):
        _, server = hosts.connected()
        server.receive(HEADER.pack(length << 8 | MessageKind.RECORD) + bytes(50), 0.0)
        assert server.failure is not None, length
        assert len(server._partial) == 0
    _, server = hosts.connected()
    server.receive(HEADER.pack(40 << 8 | MessageKind.SET_UP), 0.0)
    assert server.failure is not None


def test_the_largest_record_and_none_larger(make_hosts):
    for ask in (*PROTECTED, SetUpOptions(clear=True)):
        client, server = pair(make_hosts, ask)
        text = random.Random(3).randbytes(RECORD_BYTES)
        flat = b"".join(client.send([text[:1000], memoryview(text)[1000:]]))
        assert len(flat) == HEADER_BYTES + RECORD_BYTES + (0 if ask.clear else 16)
        assert [bytes(r) for r in server.receive(flat, 0.0)] == [text]
        with pytest.raises(ValueError, match=str(RECORD_BYTES + 1)):
            client.send([text, b"x"])
        with pytest.raises(ValueError, match="0 bytes"):
            client.send([])


def test_keys_roll_on_both_ends_without_a_message(monkeypatch, hosts):
    monkeypatch.setattr(crypto, "RECORDS_PER_KEY", 3)
    keys = []
    made = crypto.aead
    monkeypatch.setattr(
        crypto, "aead", lambda key, *, chacha: (keys.append(key), made(key, chacha=chacha))[1]
    )
    sealer, opener = (RecordKey(Suite.AES_128_GCM, bytes(32)) for _ in range(2))
    for number in range(10):
        text = b"%d" % number
        assert opener.open(b"head", sealer.seal(b"head", [text])) == text
    assert len(set(keys)) == 4
    assert len(keys) == 8


@pytest.mark.parametrize("suite", [Suite.AES_128_GCM, Suite.CHACHA20_POLY1305])
def test_what_is_on_the_wire_is_the_standard_aead(suite):
    """A vector of the record protection, computed with HKDF and AEADs of `cryptography` alone."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    secret = bytes(range(32))
    size = 16 if suite is Suite.AES_128_GCM else 32
    key = HKDFExpand(SHA256(), size, b"cedos session 1 record\0").derive(secret)
    cipher = AESGCM(key) if suite is Suite.AES_128_GCM else ChaCha20Poly1305(key)
    sealer = RecordKey(suite, secret)
    for count in range(3):
        expected = cipher.encrypt(count.to_bytes(12, "big"), b"some words", b"head")
        assert sealer.seal(b"head", [b"some ", b"words"]) == expected
