import pytest

from cedos.model import Direction
from emu.lab.runs.browsing import Browsed
from emu.lab.runs.experiment import _Result
from emu.testbed.counters import CarriedBytes
from emu.workloads.mixed import Completed, PlannedTransfer


@pytest.mark.parametrize(
    ("censored", "moved", "received"),
    [
        (False, CarriedBytes(1_000_400, 0), 1_000_000),
        (True, CarriedBytes(200_000, 50_000), 250_000),
        (True, CarriedBytes(0, 0), 0),
    ],
)
def test_a_transfer_that_was_cut_received_what_its_connection_carried(
    censored: bool, moved: CarriedBytes, received: int
) -> None:
    planned = PlannedTransfer(0, "a", 0.0, "198.51.100.2", Direction.DOWN, 1_000_000, mptcp=True)
    done = Completed(planned, 5.0, 30.0, censored, "192.0.2.1", 5000, None)
    carried = {("192.0.2.1", 5000, "198.51.100.2"): moved}
    result = _Result(0.0, 0.0, [done], carried, [], [], [], [], Browsed(), ())
    assert result.received_bytes(done) == received
