"""How well transfers were predicted, in a sentence; nothing from a few."""

import pytest

from cedos.doctor.predicted_text import sentence
from predictors.calibration import Calibration


@pytest.mark.parametrize(("held", "said"), [
    (None, ""),
    (Calibration(1, 0.5, 0.5, 1.0), ""),
    (
        Calibration(20, 0.5, 0.6, 0.85),
        "wlan0: transfers took 2 times as long as expected (median of 20); 17 of 20 were within the"
        " 90 % interval",
    ),
    (
        Calibration(8, 1 / 132, 0.1, 0.125),
        "wlan0: transfers took 132 times as long as expected (median of 8); 1 of 8 were within the 90 %"
        " interval",
    ),
    (
        Calibration(20, 1.01, 0.6, 0.85),
        "wlan0: transfers took as long as expected (median of 20); 17 of 20 were within the 90 %"
        " interval",
    ),
])  # fmt: skip
def test_what_is_said(held: Calibration | None, said: str) -> None:
    assert sentence("wlan0", held) == said
