import pytest

from predictors.calibration import Judged, calibration, size_class


def test_expected_over_actual_and_what_the_interval_had() -> None:
    held = calibration([Judged(0.5, 1.0, 2.0, 1.2, 1.0), Judged(0.5, 1.0, 2.0, 1.2, 4.0)])
    assert held is not None
    assert (held.n, held.coverage90) == (2, 0.5)
    assert held.expected_over_actual_median == pytest.approx(0.625)
    assert held.expected_over_actual_sum == pytest.approx(2.4 / 5.0)
    assert calibration([]) is None


def test_sizes_have_three_classes() -> None:
    assert [size_class(size) for size in (99_999, 100_000, 999_999, 1e6)] == [
        "small", "medium", "medium", "large",
    ]  # fmt: skip
