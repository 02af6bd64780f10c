"""The page of figures says what the result files say."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from statistics import mean, median
from typing import Any

import pytest

from emu.repository import ROOT
from emu.runs.mobility import FIXED

PAGE = (ROOT / "docs" / "state.md").read_text()
CEDOS = "cedos"
CEDOS_TOLD = "cedos-told"
MOBILITY = ("sbu7-1", "sbu7-2", "sbu7-3", "sbu7-5", "sbu13-1", "p02")
STEADY = ("p01", "p03", "p06")


def result(name: str) -> Any:
    return json.loads((ROOT / "notebooks" / "results" / f"{name}.json").read_text())


def row(beginning: str) -> str:
    """The row of the page that begins so, without its marks of missed goals."""
    (found,) = (line for line in PAGE.splitlines() if line.startswith(f"| {beginning}"))
    return found.replace("**", "")


class Live:
    """The live runs at some places, all runs alike."""

    def __init__(self, places: Iterable[str]) -> None:
        wanted = set(places)
        self.runs = [run for run in result("delphi_live")["places"] if run["place"] in wanted]
        self.best = min(FIXED, key=lambda name: self.mean(name, "mean_s"))

    def mean(self, policy: str, key: str) -> float:
        return mean(run["policies"][policy][key] for run in self.runs)

    @property
    def in_hindsight(self) -> float:
        best = mean(min(run["policies"][name]["mean_s"] for name in FIXED) for run in self.runs)
        return self.mean(CEDOS, "mean_s") / best

    @property
    def over_best(self) -> float:
        return self.mean(CEDOS, "mean_s") / self.mean(self.best, "mean_s")

    @property
    def ratios(self) -> list[float]:
        return [run["policies"][CEDOS]["over_best_fixed"] for run in self.runs]

    def used(self, policy: str) -> str:
        energy_j, cellular_mb = (self.mean(policy, key) for key in ("energy_j", "cellular_mb"))
        return f"{energy_j:.0f} J and {cellular_mb:.0f} MB"


def test_mixed_load_where_wifi_is_left() -> None:
    live, said = Live(MOBILITY), row("mixed load of an unmodified client")
    assert len(live.runs) == 18
    assert f"{live.in_hindsight:.2f} / {live.over_best:.2f} (median" in said
    assert f"(median of runs {median(live.ratios):.2f}, worst {max(live.ratios):.2f};" in said
    assert live.used(CEDOS) in said


def test_mixed_load_once_more() -> None:
    runs = result("delphi_live_rerun")["places"]
    assert sorted(run["place"] for run in runs) == sorted(3 * MOBILITY)

    def of(policy: str, key: str) -> float:
        return mean(run["policies"][policy][key] for run in runs)

    said = row("the same 18 runs once more")
    ours_s, best_s = of(CEDOS, "mean_s"), of("mptcp-cellular", "mean_s")
    assert f"| {ours_s / best_s:.2f} ({ours_s:.3f} s for {best_s:.3f} s a run;" in said
    used = [
        f"{of(name, 'energy_j'):.0f} J and {of(name, 'cellular_mb'):.0f} MB"
        for name in (CEDOS, "mptcp-cellular")
    ]
    assert f"; {used[0]} cellular for {used[1]} |" in said


def test_mixed_load_where_nobody_walks() -> None:
    live, said = Live(STEADY), row("the same, three places where nobody walks")
    assert f"| {live.in_hindsight:.2f} / {live.over_best:.2f};" in said
    assert live.used(CEDOS) in said


def test_mixed_load_together() -> None:
    live, said = Live({*MOBILITY, *STEADY}), row("all nine together")
    assert len(live.runs) == 27
    assert f"| {live.in_hindsight:.2f} / {live.over_best:.2f};" in said


def test_deadlines() -> None:
    days, places = result("cedos_days"), result("cedos_places")["all"]
    ours, at_places = days["chance"], places["chance"]
    said = row("deadlines that can be met")
    assert (
        f"| {ours['met_share']:.1%}, {100 * ours['wifi_share_gap']:.1f} points /"
        f" {at_places['met_share']:.1%}, {100 * at_places['wifi_share_gap']:.1f} points (D2Sched:"
    ).replace("%", " %") in said


def test_the_gateway() -> None:
    found = result("gateway")
    figures, cuts = found["figures"], [each["pause_s"] for each in found["cuts"]]
    said = row(f"{len(cuts)} cuts")
    assert f"none / {median(cuts):.2f} and {figures['stall_p95_s']:.2f} s" in said
    assert f"(at most {max(cuts):.2f}) / {100 * figures['stall_within_share']:.0f} %" in said
    mixed = row("mixed load of plain-TCP curl through the gateway")
    for policy in ("cellular-only", "mptcp-cellular"):
        every, by_place = _mixed_over(found["mixed"] + found["mixed_third_seed"], policy)
        least, most = min(by_place), max(by_place)
        assert f"{every:.2f}, {least:.2f} to {most:.2f}" in mixed
    assert f"/ {figures['page_ratio_mobility']:.2f} |" in row("pages in Chromium")
    assert f"/ {figures['call_gap_ms']:.0f} ms" in row("a two-way call")
    assert figures["call_loss_share"] == 0.0


def _mixed_over(runs: list[Any], policy: str) -> tuple[float, list[float]]:
    """The gateway's time over a fixed policy's: all together, and by place."""
    ours: Counter[str] = Counter()
    theirs: Counter[str] = Counter()
    for each in runs:
        beside = each["beside"].get(policy, {}).get("mean_s")
        other_s = beside or each.get("fixed_mean_s", {}).get(policy)
        if other_s is not None:
            ours[each["place"]] += each["n"] * each["mean_s"]
            theirs[each["place"]] += each["n"] * other_s
    return ours.total() / theirs.total(), [ours[place] / theirs[place] for place in ours]


def test_waiting_asleep() -> None:
    power = result("cedos_idle_power")
    alarm, awake = power["alarm"], power["wakelock"]
    said = row("waiting asleep, 100 simulated days")
    assert f"{alarm['mw'] - 43:.1f} beside {awake['mw'] - 43:.1f} mW" in said
    assert f"{100 * alarm['met_share']:.1f} beside {100 * awake['met_share']:.1f} %" in said


@pytest.mark.parametrize("link", re.findall(r"\]\((\S+?/results/\S+?)\)", PAGE))
def test_results_that_it_leads_to_are_there(link: str) -> None:
    assert (ROOT / "docs" / link).exists()


def test_old_rates() -> None:
    ages, said = result("delphi_ages")["ages"], row("choice between the two networks alone")
    by_evidence = row("the same where Wi-Fi's is old")
    shown = [_chosen(ages[name]) for name in ("fresh", "wifi old", "cellular old")]
    assert "; ".join(shown) in said
    known = "wifi old, small transfer known", "wifi old, no small transfer known"
    assert f"| {'; '.join(_chosen(ages[name]) for name in known)}; " in by_evidence
    assert (
        f"{_covered(ages, known, 'wifi')} / {_covered(ages, known, 'cellular')} %; " in by_evidence
    )
    old = "cellular old"
    assert (
        f"; {_covered(ages, [old], 'wifi')} / {_covered(ages, [old], 'cellular')} % |"
        in by_evidence
    )


def test_old_rates_of_another_collection() -> None:
    ages, said = result("delphi_ages_elsewhere")["ages"], row("the same of another collection's")
    names = "wifi old", "wifi old, small transfer known", "cellular old"
    hedged = ", ".join(
        f"{ages[name]['policies']['cedos-hedged']['mean_s_over_oracle']:.2f}"
        for name in ("wifi old", "cellular old")
    )
    cover = [
        100 * each["coverage90"]
        for name in ("wifi old", "cellular old")
        for each in ages[name]["prediction"].values()
    ]
    shown = "; ".join(_chosen(ages[name]) for name in names)
    assert f"| {shown}; {hedged}; {min(cover):.0f} to {max(cover):.0f} % |" in said


def _chosen(of_age: Any) -> str:
    cedos = of_age["policies"]["cedos"]
    return f"{cedos['mean_s_over_oracle']:.2f} / {cedos['regret_mean']:.2f}"


def _covered(ages: Any, names: Iterable[str], network: str) -> str:
    return ", ".join(
        f"{100 * ages[name]['prediction'][network]['coverage90']:.0f}" for name in names
    )


def test_pages_and_videos_beside_their_rivals() -> None:
    said = row("web pages / video in Chromium")
    found = [result(f"delphi_{name}")["policies"] for name in ("web", "video")]
    web, video = ([100 * each[CEDOS_TOLD]["reduction_ci95"][k] for k in (0, 1)] for each in found)
    own = [f"{100 * each[CEDOS_TOLD]['reduction']:.0f} %" for each in found]
    assert f"{own[0]} [{web[0]:.0f}, {web[1]:.0f}]" in said
    assert f"{own[1]} [{video[0]:.0f}, {video[1]:.0f}]" in said
    for words, name in (
        ("cellular only", "cellular-only"),
        ("kernel MPTCP, cellular first,", "mptcp-cellular"),
    ):
        shares = " / ".join(f"{100 * each[name]['reduction']:.0f}" for each in found)
        assert f"{words} {shares} %" in said


def test_wifi_by_allowed_delay() -> None:
    found, said = result("cedos_delays"), row("share over Wi-Fi by allowed delay")
    assert f"{found['days']} simulated days" in said
    ours = [found[key]["chance"]["wifi_share"] for key in ("600", "3600", "10800", "21600")]
    none = found["21600"]["no-delay"]["wifi_share"]
    assert " / ".join(f"{100 * each:.0f}" for each in [none, *ours[:-1]]) in said
    same = found["600"]["no-delay"]
    late, less = (100 * (1 - each["met_share"]) for each in (same, found["600"]["chance"]))
    assert f"{100 * same['wifi_share']:.0f} % without any delay, {late:.1f} % of them late" in said
    assert f"(ours {less:.1f} %)" in said


def test_without_second_paths_moves_and_rescues() -> None:
    policies = result("delphi_mobility")["together"]["policies"]
    start, whole = (policies[name]["over_best_fixed"] for name in ("cedos-told-start", CEDOS))
    said = row("earlier, objective `max-s`, predictors that saw these places")
    assert f"{start:.2f} (told nothing and with them {whole:.2f})" in said


def test_rows_that_were_measured_twice() -> None:
    told = result("delphi_floor")["max_s"]["told"]
    every, steady = told["all"]["cedos"], told["steady"]["cedos"]
    assert (
        f"| {every['within10_share']:.3f} / {every['regret_mean']:.3f} /"
        f" {every['mean_s_over_oracle']:.3f}; {steady['regret_mean']:.3f} |"
    ) in row(f"the same, {every['n']} rows measured twice")


def test_what_is_expected_of_live_transfers() -> None:
    for name, beginning in (
        ("delphi_calibration", "what it expects of transfers live"),
        ("delphi_calibration_rerun", "the same, the 18 runs once more"),
        ("delphi_calibration_27", "the same, these runs on 27 November"),
    ):
        found = result(name)["policies"][CEDOS]["calibration"]
        medians = [
            each["expected_over_actual_median"]
            for sizes in found.values()
            for each in sizes.values()
        ]
        assert f"| {min(medians):.2f} to {max(medians):.2f} /" in row(beginning)


def test_budgets_of_prefetching() -> None:
    said = row("prefetching within budgets (simulated)")
    times = {
        kind: [
            each["times_better"]
            for place in result(f"imp_{kind}_many")["places"].values()
            for name, each in place["beside"].items()
            if each["meeting"] and "one-class" not in name
        ]
        for kind in ("email", "news")
    }
    assert f"e-mail {min(times['email']):.1f} to {max(times['email']):.1f}x by goal" in said
    assert f"news {max(times['news']):.1f} and {min(times['news']):.1f}x" in said


def test_the_row_of_trials_is_that_of_its_result_file() -> None:
    figures = result("trials")["figures"]
    cases = ("often", "each_second", "long_slow", "small", "metered", "metered_each_second")
    medians = " / ".join(f"{figures[f'{case}_median_s']:.1f}" for case in cases)
    longest = max(figures[f"{case}_longest_s"] for case in cases)
    assert f"| {medians} s; {longest:.0f} s |" in row("a free Wi-Fi that went from")


def test_the_first_table_of_the_readme() -> None:
    live, gateway = Live(MOBILITY), result("gateway")
    shown = {
        cells[1].strip("* "): [cell.strip("* ") for cell in cells[2:5]]
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith("| ") and len(cells := line.replace("**", "").split("|")) == 6
    }

    def mean_s(policy: str) -> float:
        every = [run["policies"][policy] for run in live.runs]
        return sum(of["n"] * of["mean_s"] for of in every) / sum(of["n"] for of in every)

    for title, policy in (
        ("Linux as it is (Wi-Fi first)", "wifi-first"),
        ("LTE alone", "cellular-only"),
        ("kernel MPTCP, Wi-Fi first", "mptcp-wifi"),
        ("kernel MPTCP, cellular first", "mptcp-cellular"),
        ("cedos alone", CEDOS),
    ):
        assert shown[title] == [
            f"{mean_s(policy):.2f} s",
            f"{live.mean(policy, 'cellular_mb'):.0f} MB",
            f"{live.mean(policy, 'energy_j'):.0f}",
        ]
    mixed = gateway["mixed"] + gateway["mixed_third_seed"]
    count = sum(run["n"] for run in mixed)
    assert count == sum(run["policies"][CEDOS]["n"] for run in live.runs) == 2502
    gateway_s = sum(run["n"] * run["mean_s"] for run in mixed) / count
    assert shown["cedos with a gateway"][0] == f"{gateway_s:.2f} s"
