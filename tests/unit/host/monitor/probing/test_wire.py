"""Messages between probes and their server: complete, signed, and strictly parsed."""

from ipaddress import IPv4Address, IPv6Address, ip_address

from hypothesis import given
from hypothesis import strategies as st

from cedos.host.monitor.probing import wire

KEY, OTHER = b"k" * 32, b"o" * 32
sessions = st.binary(min_size=16, max_size=16)
u16, u32 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)


@st.composite
def trains(draw):
    packets = draw(st.integers(1, 2**16 - 1))
    return wire.TrainPacket(draw(sessions), draw(st.integers(0, packets - 1)), packets)


messages = st.one_of(
    st.builds(wire.ProbeHello, sessions),
    st.builds(wire.Cookie, sessions, sessions),
    st.builds(wire.TrainRequest, sessions, sessions, u16, u16),
    st.builds(
        wire.Refused,
        sessions,
        st.sampled_from(list(wire.RefusalReason)),
        st.integers(0, 2**32 - 1).map(lambda value: value / 1e3),
    ),
    trains(),
)


@given(messages)
def test_what_is_said_is_understood(message):
    encoded = wire.encode(message, KEY)
    assert wire.decode(encoded, KEY) == message
    assert wire.decode(encoded, OTHER) is None


@given(messages, st.data())
def test_what_is_changed_or_cut_is_nothing(message, data):
    encoded = wire.encode(message, KEY)
    at = data.draw(st.integers(0, len(encoded) - 1))
    other = data.draw(st.integers(1, 255))
    assert wire.decode(encoded[:at] + bytes([encoded[at] ^ other]) + encoded[at + 1 :], KEY) is None
    assert wire.decode(encoded[:at], KEY) is None
    assert wire.decode(encoded + b"\0", KEY) is None


@given(sessions, sessions, st.sampled_from(list(wire.RefusalReason)))
def test_no_answer_is_longer_than_its_question(session, cookie, reason):
    hello = wire.encode(wire.ProbeHello(session), KEY)
    assert len(hello) == len(wire.encode(wire.Cookie(session, cookie), KEY))
    ask = wire.encode(wire.TrainRequest(session, cookie, 50, 1200), KEY)
    assert len(wire.encode(wire.Refused(session, reason, 1.0), KEY)) <= len(ask)


addresses = st.one_of(st.builds(IPv4Address, u32), st.builds(IPv6Address, st.integers(0, 2**64)))


@given(addresses, u16, sessions, st.floats(0, 1e9), st.floats(0, wire.COOKIE_LIFE_S))
def test_a_cookie_holds_for_its_source_and_time_alone(source, port, session, now_s, later_s):
    cookie = wire.cookie(KEY, source, port, session, now_s)
    assert wire.cookie_holds(cookie, KEY, source, port, session, now_s + later_s)
    late_s = now_s + 2 * wire.COOKIE_LIFE_S + 0.001
    assert not wire.cookie_holds(cookie, KEY, source, port, session, late_s)
    assert not wire.cookie_holds(cookie, KEY, source, port ^ 1, session, now_s)
    assert not wire.cookie_holds(cookie, KEY, source, port, session[::-1] + b"", now_s) or (
        session == session[::-1]
    )
    assert not wire.cookie_holds(cookie, OTHER, source, port, session, now_s)
    stranger = ip_address("203.0.113.9")
    assert source == stranger or not wire.cookie_holds(cookie, KEY, stranger, port, session, now_s)
