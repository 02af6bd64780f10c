"""Figures of places: outages, classes, and that the samples' files say what their series say."""

import csv

import pytest

from emu import ROOT
from emu.places.places import load
from emu.places.stats import place_stats
from emu.places.synth import opportunities


def test_a_place_is_compared_over_the_common_seconds(tmp_path):
    for kind, rates in (("wifi", [8.0, 0.0, 4.0, 0.0]), ("cellular", [2.0, 0.0, 6.0, 0.05, 90.0])):
        (tmp_path / kind).mkdir()
        opportunities(rates).write(tmp_path / kind / "x.trace.gz")
    (tmp_path / "places.csv").write_text("place,wifi,cellular,common_s\nx,x,x,4\ny,x,x,\n")
    places = load(tmp_path)
    assert place_stats(places["y"]).common_s == 5, "as long as its longest network"
    assert place_stats(places["y"]).wifi.mean_bps == pytest.approx(4e6, rel=0.01)
    stats = place_stats(places["x"])
    assert stats.common_s == 4
    assert stats.wifi.mean_bps == pytest.approx(3e6, rel=0.01)
    assert stats.cellular.mean_bps == pytest.approx(2e6, rel=0.01)
    assert stats.better == "wifi-better"
    assert stats.both_out_s == 2
    assert stats.wifi_better_share == 0.25


REAL = ROOT.parent / "shared" / "traces-real"


@pytest.mark.skipif(not (REAL / "places.csv").is_file(), reason="the real traces are not here")
def test_the_real_places_figures_are_those_of_their_table():
    places = load(REAL)
    with (REAL / "places.csv").open(newline="") as file:
        for row in list(csv.DictReader(file))[::5]:  # all would take long
            stats = place_stats(places[row["place"]])
            assert stats.better == row["class"], row
            assert stats.both_out_s == int(row["both_out_s"]), row
            assert stats.common_s == int(row["common_s"]), row
            for column, value, digits in (
                ("wifi_mean_mbps", stats.wifi.mean_bps / 1e6, 2),
                ("cell_mean_mbps", stats.cellular.mean_bps / 1e6, 2),
                ("wifi_better_share", stats.wifi_better_share, 2),
                ("wifi_outage", stats.wifi.outage_share, 3),
                ("cell_outage", stats.cellular.outage_share, 3),
            ):
                assert value == pytest.approx(float(row[column]), abs=0.51 * 10**-digits), row
