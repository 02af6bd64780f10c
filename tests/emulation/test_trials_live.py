"""A free Wi-Fi that was slow once carries what is fetched again, soon after it is fast."""

import pytest

from cedos.model import NetworkKind
from emu.bench.trials import Case, again, measure


@pytest.mark.usefixtures("registry")
def test_wifi_that_was_slow_is_used_again_when_it_is_fast() -> None:
    case, log = Case("often"), list[str]()
    fetches = measure(case, 60.0, log)
    slow = [fetch.network for fetch in fetches[2:] if fetch.began_s < case.slow_s]
    assert slow.count(NetworkKind.CELLULAR) > 0.8 * len(slow), "the phone carried them"
    assert again(case, fetches) < 60.0
    assert "to show how fast it is by now" in log[0]
