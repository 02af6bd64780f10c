"""The datagrams: what is packed is unpacked, and nothing else is."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.neighbours import REACHES, START_S, identity, key_of, trust

from cedos.apps.sharing.protocol.certificates import UntrustedError
from cedos.apps.sharing.protocol.messages import (
    MOST_DATAGRAM_BYTES,
    ConfirmMessage,
    Endpoint,
    HelloAckMessage,
    HelloMessage,
    InviteMessage,
    JoinMessage,
    LeaveMessage,
    LeaveReason,
    pack,
    unpack,
)
from cedos.selector.sharing import NetworkType

ANN = identity("ann")
BOB_KEY = key_of("bob").public
TIMES = st.integers(0, 2**56)
NONCES = st.binary(min_size=16, max_size=16)
KEYS = st.binary(min_size=32, max_size=32)
BYTES = st.integers(0, 10**15)
ADDRESSES = st.binary(min_size=4, max_size=4)
INVITES = st.builds(InviteMessage, TIMES, NONCES, st.integers(0, 10**12))
JOINS = st.builds(
    JoinMessage,
    TIMES, NONCES, KEYS, NONCES, st.integers(0, 10**12), st.from_regex(r"[A-Z]{3}", fullmatch=True),
    BYTES, st.none() | st.integers(0, 10**12), st.sampled_from(NetworkType),
    st.none() | st.integers(0, 10**8),
    ADDRESSES, st.builds(Endpoint, ADDRESSES, st.integers(1, 65_535)),
)  # fmt: skip
MESSAGES = st.one_of(
    INVITES,
    JOINS,
    st.builds(ConfirmMessage, TIMES, NONCES, KEYS, NONCES, KEYS, ADDRESSES),
    st.builds(LeaveMessage, TIMES, NONCES, KEYS, st.sampled_from(LeaveReason)),
    st.builds(HelloMessage, TIMES, NONCES, KEYS),
    st.builds(HelloAckMessage, TIMES, NONCES, KEYS, NONCES, BYTES),
)
INVITE = InviteMessage(1, bytes(16), 8_000_000)
HEAD = pack(ANN, INVITE)[: 7 + len(ANN.certificate)]


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message):
    data = pack(ANN, message)
    assert len(data) <= MOST_DATAGRAM_BYTES
    found = unpack(data)
    assert found.message == message
    assert found.verify_sender(trust(), START_S).host == ANN.key.public


@given(st.data(), MESSAGES)
def test_one_wrong_bit_is_refused(data, message):
    good = pack(ANN, message)
    bit = data.draw(st.integers(0, 8 * len(good) - 1))
    wrong = bytearray(good)
    wrong[bit // 8] ^= 1 << bit % 8
    with pytest.raises(UntrustedError):
        unpack(bytes(wrong)).verify_sender(trust(), START_S)


@given(st.binary(max_size=1400))
def test_noise_is_refused(data):
    with pytest.raises(UntrustedError):
        unpack(data)


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.binary(max_size=40),
    st.text(max_size=4), st.lists(st.integers(0, 300), max_size=5),
)  # fmt: skip


@given(MESSAGES, st.data())
def test_any_other_body_is_refused_even_if_it_is_signed(message, data):
    """A member of the group may send what it likes: the parser takes messages alone."""
    items = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    where = data.draw(st.integers(0, len(items)))
    items[where : where + data.draw(st.integers(0, 2))] = data.draw(st.lists(ODD, max_size=2))
    signed = HEAD + msgspec.msgpack.encode(items)
    wrong = signed + ANN.key.sign(b"cedos share datagram 1", signed)
    try:
        found = unpack(wrong)
    except UntrustedError:
        return
    # What is taken is a message within all bounds, so it can be said again.
    assert unpack(pack(ANN, found.message)).message == found.message


@given(st.integers(0, 700))
def test_a_datagram_that_is_cut_is_refused(length):
    good = pack(ANN, INVITE)
    with pytest.raises(UntrustedError):
        unpack(good[: min(length, len(good) - 1)]).verify_sender(trust(), START_S)


def test_deep_nesting_does_not_exhaust_the_stack():
    with pytest.raises(UntrustedError):
        unpack(HEAD + b"\x91" * 700 + bytes(64))


@pytest.mark.parametrize("length", [0, 3, 5, 16])
def test_an_address_has_4_bytes(length):
    confirm = ConfirmMessage(1, bytes(16), BOB_KEY, bytes(16), bytes(32), bytes(length))
    with pytest.raises(UntrustedError):
        unpack(pack(ANN, confirm))


def test_a_datagram_fits_in_any_packet_with_the_longest_name_and_all_it_may_tell():
    longest = identity("\N{HIRAGANA LETTER A}" * 63)
    join = JoinMessage(
        2**56, bytes(16), BOB_KEY, bytes(16), 10**12, "EUR", 10**15, 10**12,
        NetworkType.NR, 10**8,
        bytes(4), REACHES,
    )  # fmt: skip
    assert len(pack(longest, join)) < MOST_DATAGRAM_BYTES - 200


def test_a_signature_for_another_purpose_is_worth_nothing():
    good = pack(ANN, INVITE)
    other = good[:-64] + ANN.key.sign(b"cedos share receipt 1", good[:-64])
    with pytest.raises(UntrustedError, match="did not sign"):
        unpack(other).verify_sender(trust(), START_S)
