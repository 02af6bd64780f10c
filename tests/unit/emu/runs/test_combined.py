"""Several places together: reductions against Wi-Fi first, and Delphi's normalised objectives."""

import msgspec
import numpy as np
import pytest

from cedos.errors import ConfigError, DataSetError, EmulationError
from emu import ROOT
from emu.places import places as collections
from emu.runs import runs, scenario, series
from emu.runs.summary import Browsing, PolicyRun, summarise

POLICIES = ("wifi-first", "cedos")
PAGE = scenario.PageLoad("pages", sites=2)


def write(folder, place, times_s, joules):
    """A finished run of two page visits of 1 MB a policy."""
    wanted = scenario.Scenario(
        page=(PAGE,), name="web", place=place, duration_s=8.0, policies=POLICIES
    )
    run = runs.RunFolder.create(folder, wanted, {"duration_s": 8.0, "synthetic": False})
    for name in ("flows", "decisions", "rates", "capacity", "switches", "predictions", "objects"):
        run.write_table(name, [])
    run.write_table("pages", [
        {"policy": policy, "repeat": 0, "number": number, "name": "pages", "url": "u",
         "planned_s": 4.0 * number, "started_s": 4.0 * number, "load_s": time_s, "transfer_s": time_s,
         "censored": time_s == 20.0, "missing": 0, "objects": 3, "size_bytes": 1_000_000,
         "received_bytes": 1_000_000, "problem": None}
        for policy, times in times_s.items() for number, time_s in enumerate(times)
    ])  # fmt: skip
    results = {
        policy: PolicyRun(
            np.array(times), np.full(len(times), 1e6), np.zeros(len(times), bool),
            [joules[policy]], [2e6],
            Browsing(page_load_s=np.array(times), page_transfer_s=np.array(times)),
        )
        for policy, times in times_s.items()
    }  # fmt: skip
    run.write_json("summary.json", summarise(results))


def known():
    return collections.load(ROOT / "traces")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("series")


@pytest.fixture(scope="module")
def found(folder):
    write(folder / "a", "a", {"wifi-first": [4.0, 4.0], "cedos": [1.0, 1.0]},
          {"wifi-first": 1.0, "cedos": 8.0})  # fmt: skip
    write(folder / "b", "b", {"wifi-first": [2.0, 20.0], "cedos": [2.5, 1.5]},
          {"wifi-first": 1.0, "cedos": 1.0})  # fmt: skip
    return series.figures([runs.read(folder / name) for name in "ab"])


def test_runs_of_one_place_are_repeats(found, folder):
    names = ("a", "b", "a", "b")
    twice = series.figures([runs.read(folder / name) for name in names])
    cedos = twice["policies"]["cedos"]
    assert cedos["n"] == 8
    means = ("cellular_mean_mb", "energy_mean_j")
    for key in ("reduction", "reduction_by_place", "max_s", "max_s_per_e", *means):
        assert cedos[key] == pytest.approx(found["policies"]["cedos"][key])


def test_runs_without_pages_are_refused(tmp_path):
    write(tmp_path / "c", "c", {"wifi-first": [], "cedos": []}, {"wifi-first": 1.0, "cedos": 1.0})
    with pytest.raises(DataSetError, match="of c have no pages"):
        series.figures([runs.read(tmp_path / "c")])


def test_reductions_are_of_all_transfers_and_of_the_middle_place(found):
    cedos, wifi = found["policies"]["cedos"], found["policies"]["wifi-first"]
    assert cedos["reduction"] == pytest.approx(1 - 6.0 / 30.0)
    assert cedos["reduction_by_place"] == pytest.approx((0.75 + (1 - 4 / 22)) / 2)
    assert wifi["reduction"] == 0
    assert (cedos["n"], wifi["censored"]) == (4, 1)
    low, high = cedos["reduction_ci95"]
    assert low <= cedos["reduction"] <= high


def test_objectives_are_shares_of_the_best_policy_of_each_place(found):
    cedos, wifi = found["policies"]["cedos"], found["policies"]["wifi-first"]
    # Mbit/s at a: 2 and 8; at b the medians of (4, 0.4) and of (3.2, 5.33).
    assert wifi["max_s"] == pytest.approx((0.25 + 2.2 / 4.2667) / 2, rel=1e-3)
    assert cedos["max_s"] == 1.0
    # By joules a megabyte, Wi-Fi wins at a: 2 / 0.5 against 8 / 4.
    assert cedos["max_s_per_e"] == pytest.approx((0.5 + 1.0) / 2)


@pytest.mark.usefixtures("no_pictures")
def test_a_place_that_fails_is_named(tmp_path, monkeypatch):
    places = known()
    first, second = tuple(places)[:2]
    wanted = scenario.Scenario(
        page=(PAGE,), places=(first, second), duration_s=5.0, seed=4, policies=POLICIES
    )
    tried = []

    def stub(one, *given):
        tried.append(one.place)
        if one.place == second:
            raise EmulationError("a link died")
        times = {name: [1.0, 2.0] for name in POLICIES}
        write(tmp_path / one.place, one.place, times, dict.fromkeys(POLICIES, 1.0))
        (tmp_path / one.place / "config.toml").write_bytes(msgspec.toml.encode(one))

    monkeypatch.setattr(series.experiment, "run", stub)
    found = []
    result = series.run(wanted, places, tmp_path, lambda share, what: None, found.append)
    assert tried == [first, second]
    assert result == [tmp_path / first]
    assert f"{second} is left out: a link died" in found
    # What is complete is not run again.
    series.run(wanted, places, tmp_path, lambda share, what: None, found.append)
    assert tried[2:] == [second]


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"duration_s": 0.0}, "needs a duration_s"), ({"place": "x"}, "not both")],
)
def test_series_that_cannot_be_are_refused(changes, words):
    places = known()
    names = tuple(places)[:1]
    wanted = scenario.Scenario(**{"page": (PAGE,), "places": names, "duration_s": 5.0, **changes})
    with pytest.raises(ConfigError, match=words):
        series.expand(wanted, places)


def test_the_shipped_experiments_can_be_read():
    folder = ROOT / "emu" / "experiments"
    web = scenario.read(folder / "delphi_web.toml")
    video = scenario.read(folder / "delphi_video.toml")
    assert web.places == video.places
    assert web.page
    assert video.video


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "x"', "nothing to do"),
        ('[[page]]\nname = "p"\nsites = 0', r"page\[0\]\.sites|page\[...\]\.sites"),
        ('[[page]]\nname = "p"\nevery = 3', "every"),
        ('[[video]]\nname = "v"\nbitrate_bps = 3', "bitrate_bps must be one of"),
        ('[[video]]\nname = "v"\nbuffer_s = 5.0', "two segments"),
        ('[[video]]\nname = "v"\nbitrates_bps = [2, 1]', "ascend"),
    ],
)
def test_scenarios_with_pages_name_what_is_wrong(tmp_path, text, words):
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        scenario.read(file)
