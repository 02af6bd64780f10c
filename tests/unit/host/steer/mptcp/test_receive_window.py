"""The size of the receive buffer that is allowed."""

from hypothesis import given
from hypothesis import strategies as st

from cedos.host.steer.journal_records import TCP_RMEM
from cedos.host.steer.mptcp.receive_window import ReceiveWindow, receive_buffer_bytes, with_maximum

rates = st.floats(1e3, 1e10)
rtts = st.floats(1e-4, 2.0)
paths = st.lists(st.tuples(rates, rtts), min_size=1, max_size=4)


@given(paths)
def test_it_never_limits_what_was_measured(measured):
    window = receive_buffer_bytes(measured) / 2
    assert all(window >= 2 * rate * rtt / 8 for rate, rtt in measured)


@given(paths)
def test_together_needs_no_less_and_holds_all_paths(measured):
    together = receive_buffer_bytes(measured, together=True)
    assert together >= receive_buffer_bytes(measured)
    whole = sum(rate for rate, _ in measured) * max(rtt for _, rtt in measured) / 8
    assert together / 2 >= 1.25 * whole


def test_never_above_what_the_host_has_nor_below_where_it_begins():
    own = "4096\t131072\t6291456"
    assert with_maximum(own, 1 << 30) == own
    assert with_maximum(own, 5) == "4096\t131072\t131072"
    assert with_maximum(own, 500_000) == "4096\t131072\t500000"
    assert with_maximum("nonsense", 5) is None
    assert with_maximum("1 2", 5) is None


def test_a_network_stays_as_quick_as_it_was_for_some_minutes(world):
    records = []
    bound = ReceiveWindow(world.kernel, records.append)
    both = [world.wlan0, world.lte0]

    def most(rate_bps, now_s):
        bound.on_measured(both, {"wlan0": (rate_bps, 0.05), "lte0": (1e6, 0.05)}, now_s)
        bound.used_by([])
        return int(world.kernel.sysctls[TCP_RMEM].split()[-1])

    quick = most(60e6, 0.0)
    assert most(1e6, 300.0) == quick
    assert most(1e6, 700.0) < quick
    # Never so little that the first second of a quicker download would suffer.
    assert most(1e6, 9999.0) == receive_buffer_bytes([]) >= 2 * 192 << 10
    assert {record.before for record in records} == {"4096\t131072\t6291456"}


def test_the_journal_gets_few_values(world):
    """After a day in which a far server came and went each second, it was too long to be read."""
    records = []
    bound = ReceiveWindow(world.kernel, records.append)
    for second in range(100):
        paths = {"wlan0": (20e6, 0.02 if second % 2 else 1.0), "lte0": (10e6, 0.06)}
        bound.on_measured([world.wlan0, world.lte0], paths, float(second))
    assert len(set(records)) <= 4
