import numpy as np
import pytest

from emu.lab.data.figures import Bootstrap, Outcomes, judged, quantile


def outcomes() -> Outcomes:
    return Outcomes(
        cost=np.array([1.0, 2.0, 3.3, 8.0]),
        best_cost=np.array([1.0, 2.0, 3.0, 4.0]),
        time_s=np.array([1.0, 2.0, 3.3, 8.0]),
        best_time_s=np.array([1.0, 2.0, 3.0, 4.0]),
        matches=np.array([True, True, False, False]),
        extra_bytes=np.array([0.0, 0.0, 0.0, 10.0]),
        size_bytes=np.array([10.0, 10.0, 10.0, 10.0]),
    )


def test_figures_by_hand() -> None:
    found = judged(outcomes(), Bootstrap(np.array(["a", "a", "b", "c"])))
    assert found["within10_share"] == 0.75
    assert found["oracle_match"] == 0.5
    assert found["regret_mean"] == pytest.approx((0 + 0 + 0.1 + 1.0) / 4)
    assert found["regret_p95"] == pytest.approx(1.0)
    assert found["mean_s"] == pytest.approx(14.3 / 4)
    assert found["mean_s_over_oracle"] == pytest.approx(1.43)
    assert found["extra_bytes_share"] == 0.25
    assert all(
        found[f"{key}_ci95"][0] <= value <= found[f"{key}_ci95"][1]
        for key, value in found.items()
        if not key.endswith("_ci95")
    )


def test_groups_are_resampled_whole() -> None:
    bootstrap = Bootstrap(np.array(["a", "a", "a", "a"]))
    assert judged(outcomes(), bootstrap)["mean_s_ci95"] == pytest.approx([14.3 / 4] * 2)


def test_more_groups_give_narrower_intervals() -> None:
    draw = np.random.default_rng(1)
    values = draw.normal(size=400)
    widths = []
    for count in (10, 400):
        low, high = Bootstrap(np.arange(400) % count).figure("x", quantile(values, 0.5))["x_ci95"]
        widths.append(high - low)
    assert widths[1] < widths[0] * 2
    assert 0.05 < widths[1] < 0.5, "four standard errors of a median of 400 are 0.25"


def test_weighted_quantiles_by_hand_and_without_the_unknown() -> None:
    of = quantile(np.array([3.0, np.nan, 1.0, 2.0]), 0.5)
    weights = np.array([[1.0, 1.0, 1.0, 1.0], [5.0, 1.0, 1.0, 1.0], [0.0, 9.0, 0.0, 0.0]])
    found = of(weights)
    assert found[:2].tolist() == [2.0, 3.0]
    assert np.isnan(found[2])
