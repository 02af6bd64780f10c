"""Collections of places: what is read, and how every mistake in one is named."""

import csv
import gzip
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cedos.errors import CedosError, PlaceError, TraceError
from emu import ROOT
from emu.places.check import check
from emu.places.places import load, scan
from emu.places.stats import place_stats
from emu.places.synth import opportunities

HEADER = "place,scenario,simultaneous,wifi,cellular,common_s,note\n"
SERIES = "t_s,down_mbps,rtt_ms,rssi_dbm,available,link_mbps,chan_util_pct,mood\n"


def even(rate_mbps, seconds):
    step_ms = 12 / rate_mbps
    count = int(seconds * 1000 / step_ms)
    return "\n".join(str(max(1, round((i + 1) * step_ms))) for i in range(count)) + "\n"


@pytest.fixture
def folder(tmp_path):
    """Two places: `hall-1` of one direction with a series, `yard` with both directions, no series."""
    for kind in ("wifi", "cellular"):
        (tmp_path / kind).mkdir()
    packed = gzip.compress(even(12, 5).encode(), mtime=0)
    (tmp_path / "wifi" / "ap.trace.gz").write_bytes(packed)
    rows = [
        "0,12,20,-60,1,65,40,calm",
        "1,11,,-63,1,58.5,50,",
        "2,0,40,,0,,60,gone",
        "3,10,30,-70,1,39,70,",
        "4,9,,-72,1,26,80,calm",
    ]
    (tmp_path / "wifi" / "ap.csv").write_text(SERIES + "\n".join(rows) + "\n")
    (tmp_path / "cellular" / "lte.trace").write_text(even(6, 4))
    (tmp_path / "cellular" / "both.down.gz").write_bytes(packed)
    (tmp_path / "cellular" / "both.up").write_text(even(2, 5))
    (tmp_path / "places.csv").write_text(
        HEADER + 'hall-1,static,yes,ap,lte,4,"a hall, indoors"\n'
        "yard,walk,no-paired-by-us,ap,both,5,\n"
    )
    return tmp_path


def rewrite(folder, text):
    (folder / "places.csv").write_text(text)


def test_a_collection_is_read(folder):
    places = load(folder)
    assert list(places) == ["hall-1", "yard"]
    hall, yard = places["hall-1"], places["yard"]
    assert (hall.scenario, hall.note, hall.group) == ("static", "a hall, indoors", "hall")
    assert hall.simultaneous
    assert not yard.simultaneous
    assert not hall.synthetic
    assert yard.group == "yard"
    assert hall.common_s == 4
    assert hall.wifi.up is hall.wifi.down
    assert hall.wifi.down.mean_bps == pytest.approx(12e6)
    assert yard.cellular.down.mean_bps == pytest.approx(12e6)
    assert yard.cellular.up.mean_bps == pytest.approx(2e6, rel=0.01)
    assert yard.cellular.series.seconds == 0
    assert set(hall.networks) == {"wifi", "cellular"}


@pytest.mark.parametrize(
    ("t_s", "rssi_dbm"),
    [
        (1.0, -60),  # second 0 has just completed
        (1.999, -60),
        (2.0, -63),
        (4.9, -70),
        (5.0, -72),  # the replay starts again; what completed last is its last second
        (5.999, -72),
        (6.0, -60),
        (0.0, -72),
        (57.5, -63),
    ],
)
def test_indicators_are_those_of_the_completed_second(folder, t_s, rssi_dbm):
    place = load(folder)["hall-1"]
    assert place.wifi.indicators_at(t_s)["rssi_dbm"] == rssi_dbm


def test_base_rtt_is_given_measured_or_drawn(folder):
    place = load(folder)["hall-1"]
    assert (place.wifi.rtt_s, place.wifi.rtt_source) == (pytest.approx(0.030), "measured")
    assert place.cellular.rtt_source == "drawn"
    assert place.cellular.rtt_s == load(folder)["hall-1"].cellular.rtt_s
    rewrite(folder, "place,wifi,cellular,cellular_rtt_ms,wifi_rtt_ms\nx,ap,lte,55.5,\n")
    place = load(folder)["x"]
    assert (place.cellular.rtt_s, place.cellular.rtt_source) == (pytest.approx(0.0555), "given")
    assert place.wifi.rtt_source == "measured"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"places\.csv:1: no column 'place'"),
        ("place,wifi\nx,ap\n", r"places\.csv:1: no column 'cellular'"),
        ("place,wifi,cellular,wifi\n", r"places\.csv:1: column 'wifi' appears twice"),
        ("place,wifi,cellular\n", "no places"),
        ("place,wifi,cellular\nx,ap\n", r"places\.csv:2: 2 fields, but the header has 3"),
        ("place,wifi,cellular\n,ap,lte\n", r"places\.csv:2: the place has no name"),
        ("place,wifi,cellular\nx,app,lte\n", r":2: no trace 'app'.*mean ap\?"),
        ("place,wifi,cellular\nx,../ap,lte\n", r":2: wifi is '\.\./ap'"),
        ("place,wifi,cellular\nx,ap,\n", r":2: cellular is ''"),
        ("place,wifi,cellular\nx,ap,lte\n\nx,ap,lte\n", r":4: place 'x' is also in line 2"),
        ("place,wifi,cellular,simultaneous\nx,ap,lte,perhaps\n", ":2: simultaneous is 'perhaps'"),
        ("place,wifi,cellular,wifi_rtt_ms\nx,ap,lte,fast\n", ":2: wifi_rtt_ms is 'fast'"),
        ("place,wifi,cellular,wifi_rtt_ms\nx,ap,lte,-3\n", ":2: wifi_rtt_ms is '-3'"),
        ("place,wifi,cellular,common_s\nx,ap,lte,long\n", ":2: common_s is 'long'"),
        ("place,wifi,cellular,common_s\nx,ap,lte,999999999\n", ":2: common_s is '999999999'"),
        ('place,wifi,cellular\n"x,ap,lte\n', "unreadable"),
    ],
)
def test_mistakes_in_places_csv_are_named(folder, text, message):
    rewrite(folder, text)
    assert re.search(message, "\n".join(scan(folder)[1]))


def test_small_files_cannot_fill_the_memory(folder):
    """Check a series of 170 kB and a trace of 16 bytes: their figures took 12 GB and more."""
    columns = ",".join(f"c{number}" for number in range(200))
    (folder / "wifi" / "ap.csv").write_text(f"t_s,{columns}\n604799{200 * ',1'}\n")
    (folder / "cellular" / "lte.trace").write_text(1000 * "1\n")
    rewrite(folder, "place,wifi,cellular,common_s\nx,both,lte,80000\ny,ap,both,\n")
    (folder / "wifi" / "both.trace").write_text("1\n1000\n")
    problems = check(folder)[1]
    assert re.search(r"12000 Mbit/s cannot be repeated for 80000 s", problems[0])
    assert re.search(r"ap\.csv: 604800 seconds of 201 columns; 16777216 values", problems[1])
    assert len(problems) == 2


def test_all_problems_are_found_at_once(folder):
    rewrite(folder, HEADER + "a,,yes,ap,nope,,\nb,,yes,nope,lte,,\nc,,yes,ap,lte,,\n")
    places, problems = scan(folder)
    assert list(places) == ["c"]
    assert len(problems) == 2
    rewrite(folder, HEADER + "a,,yes,ap,nope,,\nb,,yes,nope,lte,,\n")
    with pytest.raises(PlaceError, match="and 1 more"):
        load(folder)


def test_a_broken_place_does_not_block_the_others(folder):
    rewrite(folder, HEADER + "a,,yes,ap,nope,,\nc,,yes,ap,lte,,\nc,,perhaps,ap,lte,,\n")
    places = load(folder)
    assert list(places) == ["c"]
    assert list(places.broken) == ["a"]
    with pytest.raises(PlaceError, match=r"places\.csv:2: no trace 'nope'"):
        _ = places["a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"ap\.csv:1: no column t_s"),
        ("t_s,a,a\n", r"ap\.csv:1: column 'a' appears twice"),
        ("t_s,rssi_dbm\n0,-60\n1\n", r"ap\.csv:3: 1 fields, but the header has 2"),
        ("t_s,rssi_dbm\n0,-60\n0,-61\n", r"ap\.csv:3: t_s 0 after 0"),
        ("t_s,rssi_dbm\n0.5,-60\n", r"ap\.csv:2: t_s is '0\.5'"),
        ("t_s,rssi_dbm\n1e300,-60\n", r"ap\.csv:2: t_s is '1e300'"),
        ("t_s,rssi_dbm\ninf,-60\n", r"ap\.csv:2: t_s is 'inf'"),
        ("t_s,rssi_dbm\n0,-60\n1,loud\n", r"ap\.csv:3: rssi_dbm is 'loud'; a number"),
        ("t_s,rssi_dbm\n0,nan\n", r"ap\.csv:2: rssi_dbm is 'nan'"),
        ('t_s,rssi_dbm\n0,"-60\n', r"ap\.csv: unreadable"),
    ],
)
def test_mistakes_in_a_series_are_named(folder, text, message):
    (folder / "wifi" / "ap.csv").write_text(text)
    with pytest.raises(PlaceError, match=message):
        _ = load(folder)["hall-1"].wifi.series


def exercise(folder):
    """Reads all there is to read; only the errors that are meant for users may come out."""
    try:
        for place in load(folder).values():
            for net in place.networks.values():
                assert net.rtt_s > 0
                for t_s in (0.0, 1.5, 1e6):
                    net.indicators_at(t_s)
            assert place.common_s >= 0
    except (PlaceError, TraceError):
        pass
    except CedosError as error:
        pytest.fail(f"another kind of error: {error!r}")


fields = st.text(
    st.sampled_from('ap,lte."\n\r\0é -/0159eninfsyo\t') | st.characters(codec="utf-8"), max_size=40
)
lenient = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@lenient
@given(st.binary(max_size=200) | st.builds(lambda t: HEADER.encode() + t.encode(), fields))
def test_no_places_csv_raises_anything_else(folder, data):
    (folder / "places.csv").write_bytes(data)
    exercise(folder)


@lenient
@given(st.binary(max_size=200) | st.builds(lambda t: SERIES.encode() + t.encode(), fields))
def test_no_series_raises_anything_else(folder, data):
    (folder / "wifi" / "ap.csv").write_bytes(data)
    exercise(folder)


def test_missing_folders_and_files_are_named(tmp_path):
    with pytest.raises(PlaceError, match=r"places\.csv: no such file; a collection is"):
        load(tmp_path)
    rewrite(tmp_path, "place,wifi,cellular\nx,ap,lte\n")
    with pytest.raises(PlaceError, match="no trace 'ap'"):
        load(tmp_path)
    (tmp_path / "places.csv").unlink()
    (tmp_path / "places.csv").mkdir()
    with pytest.raises(PlaceError, match="unreadable"):
        load(tmp_path)


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


REAL = ROOT.parent / "shared" / "traces-real"


@pytest.mark.skipif(not (REAL / "places.csv").is_file(), reason="the real traces are not here")
def test_the_real_places_figures_are_those_of_their_table():
    places = load(REAL)
    with (REAL / "places.csv").open(newline="") as file:
        for row in list(csv.DictReader(file))[::5]:  # all would take long
            stats = place_stats(places[row["place"]])
            assert stats.better == row["class"], row
            assert stats.common_s == int(row["common_s"]), row
            for column, value, digits in (
                ("wifi_mean_mbps", stats.wifi.mean_bps / 1e6, 2),
                ("cell_mean_mbps", stats.cellular.mean_bps / 1e6, 2),
                ("wifi_outage", stats.wifi.outage_share, 3),
                ("cell_outage", stats.cellular.outage_share, 3),
            ):
                assert value == pytest.approx(float(row[column]), abs=0.51 * 10**-digits), row


@pytest.mark.parametrize("name", ["places.csv", "wifi/a.csv"])
def test_a_file_that_is_too_large_is_refused_by_its_name(tmp_path, name):
    for kind in ("wifi", "cellular"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "a.trace").write_text("1\n1000\n")
    (tmp_path / "places.csv").write_text("place,wifi,cellular\np,a,a\n")
    (tmp_path / "wifi" / "a.csv").write_text("t_s\n0\n")
    with (tmp_path / name).open("a") as file:
        file.write("\n" * (17 << 20))
    _, problems = check(tmp_path)
    assert [each for each in problems if str(tmp_path / name) in each and "16 MiB" in each]
