"""When a Wi-Fi counts as used again in the bench."""

import math

import pytest

from cedos.model import NetworkKind
from emu.bench.trials import AGAIN, Case, Fetch, again

CASE = Case("some", slow_s=12.0)


def fetches(*networks: str) -> list[Fetch]:
    """One each second from second 10 on."""
    return [Fetch(10.0 + at, 0.2, NetworkKind(network)) for at, network in enumerate(networks)]


@pytest.mark.parametrize(
    ("networks", "expected"),
    [
        (["cellular"] * 4 + ["wifi"] * AGAIN, 2.0),
        (["wifi"] * AGAIN, 0.0),
        (["wifi"] * (AGAIN - 1), math.inf),
        (["wifi"] * AGAIN + ["cellular"], math.inf),
        ([], math.inf),
    ],
    ids=["back", "never left", "too few", "left again", "none"],
)
def test_a_network_is_used_again_from_its_last_fetches_in_a_row(
    networks: list[str], expected: float
) -> None:
    assert again(CASE, fetches(*networks)) == expected
