"""Noise_IK against the published test vectors, and against an independent library in both roles."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noise.connection import Keypair, NoiseConnection

from cedos.session.protocol.crypto import KeyPair, aead
from cedos.session.protocol.handshake.noise import Initiator, NoiseError, Responder

# Inputs and results as published in the "cacophony" vectors that Noise libraries share (among them
# snow, tests/vectors/cacophony.txt).
PROLOGUE = bytes.fromhex("4a6f686e2047616c74")
INITIATOR = bytes.fromhex("e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1")
INITIATOR_EPHEMERAL = bytes.fromhex(
    "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a"
)
RESPONDER = bytes.fromhex("4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893")
RESPONDER_PUBLIC = bytes.fromhex("31e0303fd6418d2f8c0e78b91f22e8caed0fbe48656dcf4767e4834f701b8f62")
RESPONDER_EPHEMERAL = bytes.fromhex(
    "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b"
)
PAYLOADS = [
    bytes.fromhex(payload)
    for payload in (
        "4c756477696720766f6e204d69736573",
        "4d757272617920526f746862617264",
        "462e20412e20486179656b",
        "4361726c204d656e676572",
        "4a65616e2d426170746973746520536179",
        "457567656e2042f6686d20766f6e2042617765726b",
    )
]
RESULTS = {
    "AESGCM": (
        "669c8640d9e42a3cda2f232f78597ceefb01daa6e3df81181ccce6fc6b5026bf",
        [
            "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944"
            "4e417bc55c7a8166c993356c1be41ef67818a292426f301556c7f26b21d25ddb"
            "097153891a9a956cff47b83e63ad8d701c1342c209cff1ca5ecd43402762ac24"
            "9e3bd3a4c0a145fe07cb5dae28ea13a3",
            "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843"
            "af2ccf9972e22afc67aeafcd25162f7f98c363b7762e3e4cb7d272e39f27a5",
            "66acfc92e3197de166809e6d4d5d003dcc819a84bc3522ca53c9d9",
            "71f89aa6533a6de70b0826864dd75f60806ee40170c16290189eb3",
            "4795a3423550c8bf00386bd496a3e2c76c10669d2a75ab8f79b5094c5412a25705",
            "aa0bb39097555c918e40be82abc2b909eb79d9eb87adb07e268fc37323a6cf904fd01fb391",
        ],
    ),
    "ChaChaPoly": (
        "0b0f68fb0c27e03ce9b97565995ed4838cc0581b762ef72b062f6a546419fad7",
        [
            "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944"
            "718da798efbcd91528520204f904b9bd6c7413dccdc214d951e15253e39987f1"
            "8146e8cd0873654207148333479d4d16c289f0294b29960a72f48e0b7bba2e89"
            "083169825e59642148d492020664ccf7",
            "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843"
            "5361e70b2ed446e6c9ec387d1d6b3b840f194e373979d241b203c4acafccf5",
            "050e9f3c8fac16b68dbce8f8c4bfbf6617c897f9ada4aa29aa19c8",
            "344233a6cabb7141d80f3da2fedc311d9646bbb0f505afe403a667",
            "62cdeeb172ad7ade7aa7d9e069da5790f12331bfa00177787a1d0810c67dc3b2b4",
            "029bead1b40992327044d409d9a1f3ad8f36c3c452775d557e18bbeb2e8dfcead32d514024",
        ],
    ),
}
CIPHERS = ["AESGCM", "ChaChaPoly"]


def nonce(count, *, chacha):
    return bytes(4) + count.to_bytes(8, "little" if chacha else "big")


@pytest.mark.parametrize("cipher", CIPHERS)
def test_published_vectors(cipher):
    expected_hash, ciphertexts = RESULTS[cipher]
    chacha = cipher == "ChaChaPoly"
    assert KeyPair(RESPONDER).public == RESPONDER_PUBLIC
    initiator = Initiator(
        KeyPair(INITIATOR), KeyPair(INITIATOR_EPHEMERAL), RESPONDER_PUBLIC, PROLOGUE, chacha=chacha
    )
    responder = Responder(KeyPair(RESPONDER), PROLOGUE, chacha=chacha)

    first = initiator.write(PAYLOADS[0])
    assert first.hex() == ciphertexts[0]
    assert responder.read(first) == PAYLOADS[0]
    assert responder.peer == KeyPair(INITIATOR).public
    second = responder.write(KeyPair(RESPONDER_EPHEMERAL), PAYLOADS[1])
    assert second.hex() == ciphertexts[1]
    assert initiator.read(second) == PAYLOADS[1]
    assert initiator.hash.hex() == responder.hash.hex() == expected_hash
    assert initiator.split() == responder.split()
    keys = initiator.split()
    for number, (payload, expected) in enumerate(zip(PAYLOADS[2:], ciphertexts[2:], strict=True)):
        sealed = aead(keys[number % 2], chacha=chacha).encrypt(
            nonce(number // 2, chacha=chacha), payload, b""
        )
        assert sealed.hex() == expected


def library(cipher, *, initiator, static, remote):
    other = NoiseConnection.from_name(f"Noise_IK_25519_{cipher}_SHA256".encode())
    (other.set_as_initiator if initiator else other.set_as_responder)()
    other.set_prologue(b"prologue")
    other.set_keypair_from_private_bytes(Keypair.STATIC, static)
    if remote is not None:
        other.set_keypair_from_public_bytes(Keypair.REMOTE_STATIC, remote)
    other.start_handshake()
    return other


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from(CIPHERS), st.binary(max_size=90), st.booleans())
def test_an_independent_library_agrees(seed, cipher, payload, ours_dials):
    randbytes = random.Random(seed).randbytes
    ours, theirs = KeyPair(randbytes(32)), KeyPair(randbytes(32))
    chacha = cipher == "ChaChaPoly"
    if ours_dials:
        other = library(cipher, initiator=False, static=theirs.private, remote=None)
        dialling = Initiator(
            ours, KeyPair(randbytes(32)), theirs.public, b"prologue", chacha=chacha
        )
        assert bytes(other.read_message(dialling.write(payload))) == payload
        assert dialling.read(bytes(other.write_message(payload[::-1]))) == payload[::-1]
        sent, received = dialling.split()
        ours_hash = dialling.hash
    else:
        other = library(cipher, initiator=True, static=theirs.private, remote=ours.public)
        answering = Responder(ours, b"prologue", chacha=chacha)
        assert answering.read(bytes(other.write_message(payload))) == payload
        assert answering.peer == theirs.public
        message = answering.write(KeyPair(randbytes(32)), payload[::-1])
        assert bytes(other.read_message(message)) == payload[::-1]
        received, sent = answering.split()
        ours_hash = answering.hash
    assert other.get_handshake_hash() == ours_hash
    sealed = aead(sent, chacha=chacha).encrypt(nonce(0, chacha=chacha), b"there", b"")
    assert bytes(other.decrypt(sealed)) == b"there"
    back = bytes(other.encrypt(b"back"))
    assert aead(received, chacha=chacha).decrypt(nonce(0, chacha=chacha), back, b"") == b"back"


@given(st.data(), st.booleans())
def test_altered_and_shortened_messages_are_refused(data, second):
    initiator = Initiator(
        KeyPair(INITIATOR), KeyPair(INITIATOR_EPHEMERAL), RESPONDER_PUBLIC, b"", chacha=False
    )
    responder = Responder(KeyPair(RESPONDER), b"", chacha=False)
    message = initiator.write(b"hello")
    if second:
        responder.read(message)
        message = responder.write(KeyPair(RESPONDER_EPHEMERAL), b"answer")
    reader = initiator if second else responder
    bit = data.draw(st.integers(0, 8 * len(message) - 1))
    # X25519 ignores the highest bit of a public key (RFC 7748, 5); the hash of the handshake does not.
    altered = bytearray(message)
    altered[bit // 8] ^= 1 << bit % 8
    cut = message[: data.draw(st.integers(0, len(message) - 1))]
    with pytest.raises(NoiseError):
        reader.read(bytes(data.draw(st.sampled_from([altered, cut]))))


def test_another_prologue_another_key_and_low_order_points_are_refused():
    def initiator(prologue, server):
        return Initiator(
            KeyPair(INITIATOR), KeyPair(INITIATOR_EPHEMERAL), server, prologue, chacha=True
        )

    other = KeyPair(bytes(range(32))).public
    for message in (
        initiator(b"old", RESPONDER_PUBLIC).write(b""),
        initiator(b"new", other).write(b""),
        bytes(200),
    ):
        with pytest.raises(NoiseError):
            Responder(KeyPair(RESPONDER), b"new", chacha=True).read(message)
    with pytest.raises(NoiseError):
        initiator(b"new", bytes(32)).write(b"")
