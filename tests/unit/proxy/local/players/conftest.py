"""What time is measured by: no clock of this machine, but what the library takes beside it."""

import time
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit

import pytest

_BASE = "http://a.test/" + f"{'d' * 24}/" * 57
_ROUNDS = 3


def _library() -> None:
    """Resolves the addresses of a playlist as long as any."""
    for number in range(20_000):
        urlsplit(urljoin(_BASE, f"s{number}"))


@pytest.fixture
def over_library() -> Callable[[Callable[[], object]], float]:
    """Processor time of a call over the library's for 20,000 long addresses, the best of three pairs."""

    def took_s(call: Callable[[], object]) -> float:
        began_s = time.process_time()
        call()
        return time.process_time() - began_s

    return lambda call: min(took_s(call) / took_s(_library) for _ in range(_ROUNDS))
