import numpy as np
import pytest

from emu.data.evaluate import Outcomes, judged
from emu.statistics import Bootstrap


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
