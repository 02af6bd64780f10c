from typing import Any

import pytest

from emu.data.observed import MOST_LENGTHENED, observed

SEEN: dict[str, Any] = {
    "ended_s": 12.5, "took_s": 0.5, "lengthened": 1.25, "strategy": "wifi", "direction": "down",
    "size_bytes": 30_000,
    "columns": [("size_bytes", 30_000.0), ("direction_up", 0.0), ("wifi_rtt_s", 0.02),
                ("wifi_rate_age_s", 7.123456789)],
}  # fmt: skip


def test_a_row_has_the_one_time_without_what_others_added_and_the_context() -> None:
    (row,) = observed([SEEN], "home", "homes")
    assert row == {
        "place": "home", "group": "homes", "start_s": 12.0, "size_bytes": 30_000,
        "direction": "down", "t_wifi_s": 0.4, "censored_wifi": False, "wifi_rtt_s": 0.02,
        "wifi_rate_age_s": 7.1235,
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"columns": []}, {"columns": None}, {"lengthened": None}, {"lengthened": MOST_LENGTHENED + 1}],
)
def test_what_tells_nothing_of_the_network_is_left_out(change: dict[str, Any]) -> None:
    assert not list(observed([SEEN | change], "home", "homes"))
