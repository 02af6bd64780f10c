"""Active probes through emulated links find what the traces carry."""

import pytest

from emu.data import probes
from emu.places import synth
from emu.places.places import load


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("places")
    synth.generate("static", 1, 40, directory, "static-s1")
    return directory


def test_probes_before_a_start(directory):
    place = load(directory)["static-s1"]
    with probes.ProbeBench(directory) as bench:
        found = bench.measure(probes.Start("static-s1", 10.0, 0.020, 0.060))
        early = bench.measure(probes.Start("static-s1", 2.0, 0.020, 0.060))
    assert found is not None
    assert early is not None
    for name, base_s in (("wifi", 0.020), ("cellular", 0.060)):
        network = place.networks[name]
        at_s = 10 + probes.TRAIN_AT_S
        rates = network.down.bins(0.5)[int(at_s * 2) - 1 : int(at_s * 2) + 3]
        known = found["down"]
        assert known[f"{name}_udp_answered"] == 1
        assert min(rates) * 0.6 < known[f"{name}_udp_bps"] < max(rates) * 1.6
        assert known[f"{name}_udp_loss"] < 0.2
        for way in ("down", "up"):
            assert base_s <= found[way][f"{name}_dns_s"] < base_s + 0.1
        assert f"{name}_udp_bps" not in found["up"], "trains come downwards"
        # What would have begun before the place did was not measured.
        assert f"{name}_udp_bps" in early["down"]
        assert f"{name}_dns_s" not in early["down"]
