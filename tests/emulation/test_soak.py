"""Some minutes of mixed load: nothing is left, nothing leaks. The hour is `cedos-emu bench soak`."""

import pytest

from emu.bench import soak


@pytest.mark.long
@pytest.mark.timeout(900)
def test_minutes_of_mixed_load_leave_nothing(registry):
    found = soak.run(print, duration_s=300.0)
    assert found["restored_share"] == 1.0
    assert found["namespaces_left"] == 0.0
    assert found["transfers_failed"] <= 0.02 * found["transfers"]
    for name in ("daemon", "privileged", "gateway", "forward"):
        assert found[f"{name}_descriptors_grown"] <= 2
        assert found[f"{name}_most_mb"] < 130
