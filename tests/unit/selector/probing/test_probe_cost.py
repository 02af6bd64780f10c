"""The cost of probes: Delphi's table, and tails."""

import pytest

from cedos.model import NetworkKind
from cedos.selector.energy import DELPHI
from cedos.selector.probing.cost import probe_cost

WIFI, CELLULAR = NetworkKind.WIFI, NetworkKind.CELLULAR


# Delphi, Table 3: bytes up and down (our split of the total), seconds, joules without tail.
TABLE3 = {
    "dns": {WIFI: (70, 201, 0.64, 0.331), CELLULAR: (70, 201, 0.63, 1.378)},
    "10 pings": {WIFI: (500, 500, 9.02, 4.730), CELLULAR: (500, 500, 9.01, 19.697)},
    "udp": {WIFI: (200_000, 1000, 0.65, 0.366), CELLULAR: (200_000, 1000, 0.58, 1.613)},
}


@pytest.mark.parametrize("probe", TABLE3)
@pytest.mark.parametrize("kind", [WIFI, CELLULAR])
def test_delphis_table_3_is_reproduced(probe, kind):
    bytes_up, bytes_down, seconds, measured_j = TABLE3[probe][kind]
    cost = probe_cost(kind, bytes_up=bytes_up, bytes_down=bytes_down, seconds=seconds)
    assert cost.active_j == pytest.approx(measured_j, rel=0.09)


def test_the_tail_is_paid_once_and_by_radios_that_have_one():
    probe = {"bytes_up": 36, "bytes_down": 36, "seconds": 0.05}
    tail_j = DELPHI.radios[CELLULAR].tail_j
    assert probe_cost(CELLULAR, **probe).tail_j == tail_j
    assert probe_cost(CELLULAR, **probe, idle_s=0.0).tail_j == 0
    assert 0 < probe_cost(CELLULAR, **probe, idle_s=2.0).tail_j < tail_j
    assert probe_cost(WIFI, **probe).tail_j == 0
    assert probe_cost(CELLULAR, **probe).energy_j > tail_j


def test_what_was_not_sent_costs_nothing():
    assert probe_cost(CELLULAR, bytes_up=0, bytes_down=0, seconds=2.0).energy_j == 0
