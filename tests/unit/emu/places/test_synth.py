"""Synthetic places: the same bytes every time, and statistics within the published ranges."""

import gzip
import statistics

import numpy as np
import pytest

from cedos.errors import PlaceError
from emu import ROOT
from emu.places.check import check
from emu.places.places import load
from emu.places.stats import rates_bps
from emu.places.synth import KINDS, draw, generate

SHIPPED = ROOT / "traces"
SEEDS = range(100, 140)
# As long as the real ones of their kind.
SECONDS = {"walk-away": 100, "drive-past": 300, "static": 200, "station": 300}


@pytest.fixture(scope="module")
def drawn():
    """Forty places of each kind: rates `wifi`, `cellular`, `up`, and the indicators."""

    def columns(place):
        found = {
            "wifi": place.wifi.rate_mbps,
            "rssi_dbm": place.wifi.rssi_dbm,
            "link_mbps": place.wifi.link_mbps,
            "cellular": place.cellular.down_mbps,
            "up": place.cellular.up_mbps,
            **place.cellular.indicators,
        }
        return {name: np.array(values, dtype=float) for name, values in found.items()}

    return {
        kind: [columns(draw(kind, seed, seconds)) for seed in SEEDS]
        for kind, seconds in SECONDS.items()
    }


def ranks(values):
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def rank_correlation(first, second):
    known = ~(np.isnan(first) | np.isnan(second))
    return float(np.corrcoef(ranks(first[known]), ranks(second[known]))[0, 1])


def median_of(places, figure):
    return statistics.median(figure(place) for place in places)


def correlation(one, other):
    return lambda place: rank_correlation(place[one], place[other])


def test_the_same_arguments_give_the_same_bytes(tmp_path):
    for folder in ("one", "other"):
        for kind in KINDS:
            generate(kind, 5, 30, tmp_path / folder)
    files = sorted(path for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 1 + 5 * len(KINDS)
    for path in files:
        other = tmp_path / "other" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == other.read_bytes(), path


def test_the_shipped_samples_are_what_their_names_generate(tmp_path):
    samples = load(SHIPPED)
    assert len(samples) >= 4
    for place in samples.values():
        kind, _, seed = place.name.rpartition("-s")
        assert place.given_common_s is not None
        generate(kind, int(seed), place.given_common_s, tmp_path)
    made = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    shipped = [path for path in SHIPPED.rglob("*") if path.parent.name in ("wifi", "cellular")]
    assert len(made) == len(shipped) + 1
    for path in made:
        sample = (SHIPPED / path.relative_to(tmp_path)).read_bytes()
        if path.suffix == ".gz":
            # Another zlib may pack tighter; what is in it must be the same.
            assert gzip.decompress(sample) == gzip.decompress(path.read_bytes()), path
            assert sample[4:8] == bytes(4), f"{path}: a time stamp inside"
        else:
            assert sample == path.read_bytes(), path


def test_the_shipped_samples_are_sound_small_and_called_synthetic():
    figures, problems = check(SHIPPED)
    assert problems == []
    size = sum(
        path.stat().st_size
        for path in SHIPPED.rglob("*")
        if path.parent.name in ("wifi", "cellular")
    )
    assert size < 400_000
    samples = load(SHIPPED)
    assert all(place.synthetic and "synthetic" in place.note for place in samples.values())
    assert not any(place.simultaneous for place in samples.values())
    assert {place.scenario for place in samples.values()} == set(KINDS)
    assert any(stats.wifi.outage_share > 0.0 for stats in figures.values())


def test_traces_deliver_what_the_series_say(tmp_path):
    for kind in KINDS:
        generate(kind, 11, 60, tmp_path)
    for place in load(tmp_path).values():
        for net in place.networks.values():
            told = np.array(net.series.column("down_mbps"))
            # Whole packets: one more or less per second, and one that marks the end.
            assert np.abs(rates_bps(net.down, 60) / 1e6 - told).max() <= 2 * 0.012 + 1e-3
            assert net.down.period_s == net.up.period_s == net.series.seconds == 60
            available = net.series.column("available")
            assert [rate >= 0.1 for rate in told] == [flag == 1 for flag in available]
        up = np.array(place.cellular.series.column("up_mbps"))
        assert np.abs(rates_bps(place.cellular.up, 60) / 1e6 - up).max() <= 2 * 0.012 + 1e-3
        assert place.cellular.series.known_values("rsrp_dbm")
        assert place.wifi.series.known_values("rssi_dbm")


def test_wifi_indicators_tell_as_much_as_measured(drawn):
    for kind in ("walk-away", "drive-past", "station"):
        assert 0.50 <= median_of(drawn[kind], correlation("rssi_dbm", "wifi")) <= 0.88, kind
        assert 0.67 <= median_of(drawn[kind], correlation("link_mbps", "wifi")) <= 0.95, kind
    together = [place for kind in ("walk-away", "drive-past", "station") for place in drawn[kind]]
    assert 0.57 <= median_of(together, correlation("rssi_dbm", "wifi")) <= 0.88
    # Nobody who stays learns much from the RSSI: the line and the others decide.
    assert 0.0 <= median_of(drawn["static"], correlation("rssi_dbm", "wifi")) <= 0.45


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cruise", 1, 60), "no kind 'cruise'.*walk-away, drive-past, static, station"),
        (("static", 1, 5), "of 5 s; 10 to 3600"),
        (("static", 1, 5000), "of 5000 s"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, arguments, message):
    with pytest.raises(PlaceError, match=message):
        generate(*arguments, tmp_path)
    assert not (tmp_path / "places.csv").exists()


def test_collections_grow_and_are_not_overwritten(tmp_path):
    assert generate("static", 1, 20, tmp_path) == "static-s1"
    assert generate("static", 2, 20, tmp_path) == "static-s2"
    places = load(tmp_path)
    assert list(places) == ["static-s1", "static-s2"]
    assert places["static-s2"].group == "static-s2"
    assert places["static-s2"].common_s == places["static-s2"].longest_s == 20
    assert places["static-s2"].wifi.rtt_source == "given"
    with pytest.raises(PlaceError, match="has a place 'static-s1' already"):
        generate("static", 1, 20, tmp_path)


def test_a_foreign_collection_is_left_alone(tmp_path):
    (tmp_path / "places.csv").write_text("place,wifi,cellular\nx,a,b\n")
    with pytest.raises(PlaceError, match="not a synthetic collection"):
        generate("static", 1, 20, tmp_path)
    assert not (tmp_path / "wifi").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(PlaceError, match="cannot write there"):
        generate("static", 1, 20, tmp_path / "file")
