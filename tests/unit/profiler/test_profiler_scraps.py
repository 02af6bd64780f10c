"""Scraps, and any order of events: nothing breaks the profiler."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.profiler.frame import CapturedPacket
from cedos.profiler.profiler import Profiler, SizeLearned

Web = Any


@pytest.mark.parametrize("payload", [b"", b"\x16", b"HTTP/1.1 ", b"DELETE", b"OPTI", b"CONN x"])
def test_scraps_tell_nothing(web: Web, payload: bytes) -> None:
    profiler = Profiler()
    profiler.opened(web.key, 0.0)
    assert profiler.observe(CapturedPacket(web.key, True, payload), 1.0) == []


PAYLOADS = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            b"\x16\x03\x01\x00\x10\x01\x00\x00\x0c" + bytes(12),
            b"HTTP/1.1 101 x\r\n\r\n",
            b"HTTP/1.1 100 x\r\n\r\n",
            b"HEAD / HTTP/1.1\r\n\r\n",
            b"CONNECT a:1 HTTP/1.1\r\n\r\n",
            b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ]
    ),
)


STEPS = st.one_of(
    st.tuples(
        PAYLOADS,
        st.booleans(),
        st.none() | st.integers(0, (1 << 32) - 1),
        st.none() | st.integers(0, (1 << 32) - 1),
        st.booleans(),
    ),
    st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
    st.none(),
)


@given(st.lists(STEPS, max_size=25))
def test_no_order_of_events_breaks_it(
    web: Web,
    steps: list[tuple[bytes, bool, int | None, int | None, bool] | tuple[int, int] | None],
) -> None:
    profiler = Profiler()
    told: list[SizeLearned] = []
    for at, step in enumerate(steps):
        if step is None:
            profiler.closed(web.key, 10_000, 10_000)
            told += profiler.opened(web.key, float(at))
        elif len(step) == 2:
            told += profiler.progressed(web.key, step[0], step[1], float(at))
        else:
            payload, outgoing, sequence, acknowledgement, mptcp = step
            packet = CapturedPacket(web.key, outgoing, payload, sequence, acknowledgement, mptcp)
            told += profiler.observe(packet, float(at))
    for one in told:
        assert one.key == web.key
        assert 0 <= one.size.low_bytes <= one.size.median_bytes <= one.size.high_bytes
