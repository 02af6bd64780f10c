"""Traces: what is read is what is replayed, and what cannot be replayed is refused with its line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import TraceError
from emu.places import traces as traces_module
from emu.places.traces import OPPORTUNITY_BITS, Trace


@st.composite
def traces(draw):
    period = draw(st.integers(1, 5000))
    times = draw(st.lists(st.integers(0, period), max_size=200))
    return Trace(sorted(times), period)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "x: empty"),
        (b"\n\n", "x: empty"),
        (b"1\n\n3\n", "x:2: empty line"),
        (b"1\ntwo\n3\n", "x:2: 'two' is not an integer"),
        (b"1\n2.5\n", "x:2: '2.5' is not an integer"),
        (b"# a comment\n1\n", "x:1: '# a comment' is not an integer"),
        (b"1 # one\n", "x:1: '1 # one' is not an integer"),
        (b"1 2\n3\n", "x:1: '1 2' is not an integer"),
        (b"\n1\n", "x:1: empty line"),
        (b"\xef\xbb\xbf1\n", "x:1: .* is not an integer"),
        (b"1\n1_0\n", "x:2: '1_0' is not an integer"),
        (b"1\n\xd9\xa3\n", "x:2: .* is not an integer"),
        (b"-1\n3\n", "x:1: -1: negative"),
        (b"4\n5\n3\n", "x:3: 3 after 5"),
        (b"0\n0\n", "x:2: the last line is the period"),
        (b"1\n5000000000000\n", "x:2: lasts 57870 days, if its times are milliseconds"),
        (b"1\n99999999999999999999\n", "x:2: .* is not an integer"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(text, complaint):
    with pytest.raises(TraceError, match=complaint):
        Trace.parse(text, "x")


@given(st.binary(max_size=200) | st.text("0123456789\r\n -", max_size=60).map(str.encode))
def test_any_bytes_are_a_trace_or_a_trace_error(data):
    try:
        trace = Trace.parse(data)
    except TraceError:
        return
    assert trace.times_ms[-1] == trace.period_ms > 0
    assert (np.diff(trace.times_ms) >= 0).all()


@given(traces(), st.sampled_from(["t.trace", "t.trace.gz"]))
def test_written_and_read_again_it_is_the_same(tmp_path_factory, trace, name):
    path = tmp_path_factory.mktemp("trace") / name
    trace.write(path)
    assert Trace.read(path) == trace


@pytest.mark.parametrize("name", ["a.trace", "a.trace.gz"])
def test_what_is_too_large_is_refused_before_it_fills_the_memory(tmp_path, name, monkeypatch):
    monkeypatch.setattr(traces_module, "_MOST_BYTES", 1 << 20)
    trace = Trace(range(200_000), 200_000)
    trace.write(tmp_path / name)
    with pytest.raises(TraceError, match=f"{name}: more than 1 MiB of text"):
        Trace.read(tmp_path / name)
    Trace(range(100_000), 100_000).write(tmp_path / name)
    assert len(Trace.read(tmp_path / name)) == 100_001


@given(traces(), st.floats(0, 20))
def test_rotation_keeps_period_and_count_and_shifts_the_rate(trace, start_s):
    rotated = trace.rotated(start_s)
    assert rotated.period_ms == trace.period_ms
    assert len(rotated) == len(trace)
    start = round(start_s * 1000) / 1000
    half = trace.period_s / 2
    # One opportunity is the mark of the period: it is in another place, the others are not.
    difference = abs(rotated.rate_bps(0, half) - trace.rate_bps(start, start + half)) * half
    assert difference <= 1.001 * OPPORTUNITY_BITS


def test_rate_counts_opportunities_across_the_period():
    trace = Trace([10, 20, 70, 100])
    assert trace.rate_bps(0.01, 0.03) == pytest.approx(2 * OPPORTUNITY_BITS / 0.02)
    assert trace.rate_bps(0.05, 0.12) == pytest.approx(3 * OPPORTUNITY_BITS / 0.07)
    assert trace.rate_bps(0.03, 0.07) == 0
    assert trace.rate_bps(0.25, 10.25) == pytest.approx(trace.mean_bps)
    with pytest.raises(ValueError, match="empty"):
        trace.rate_bps(1, 1)


@pytest.mark.parametrize("rate_bps", [12_000, 1e6, 24e6, 96e6])
def test_a_constant_trace_has_its_rate_everywhere(rate_bps):
    trace = Trace.constant(rate_bps, 2)
    assert trace.mean_bps == pytest.approx(rate_bps, abs=OPPORTUNITY_BITS / 4)
    assert trace.period_s == 2
    if rate_bps >= 1e6:
        assert trace.bins(0.2) == pytest.approx(np.full(10, rate_bps), rel=0.15)
