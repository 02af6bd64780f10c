"""The policy that draws networks: each as often as the other, and otherwise with another seed."""

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from emu.places import places
from emu.policies import random_network
from emu.policies.base import Stage
from emu.policies.cedos import Cedos
from emu.repository import ROOT

DRAWS = 400


class Laptop:
    """Counts what is preferred, and ends the wait for more."""

    def __init__(self) -> None:
        self.client = self
        self.preferred: list[str] = []
        self.rules: list[tuple[str, ...]] = []
        self.enough = threading.Event()

    def ip(self, *arguments: str) -> None:
        self.rules.append(arguments)

    def prefer(self, interface: str) -> None:
        self.preferred.append(interface)
        if len(self.preferred) >= DRAWS:
            self.enough.set()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(Cedos, "start", lambda self, stage: None)
    monkeypatch.setattr(random_network, "use_kernel_path_manager", lambda laptop: None)
    monkeypatch.setattr(random_network, "_EVERY_S", 0.0)
    known = places.load(ROOT / "traces")

    def of(seed: int, place: str = "walk-away-s7") -> list[str]:
        laptop: Any = Laptop()
        policy = random_network.RandomNetwork()
        policy.start(Stage(laptop, known[place], tmp_path, 0.0, 0.0, seed))
        assert laptop.enough.wait(10.0)
        policy.stop()
        assert laptop.rules == [("rule", "add", "pref", "300", "iif", "lo", "lookup", "main")]
        drawn: list[str] = laptop.preferred[:DRAWS]
        return drawn

    return of


def test_each_network_is_drawn_as_often_whatever_was_drawn_before(drawn: Any) -> None:
    found = drawn(1)
    assert 0.4 < found.count("wlan0") / DRAWS < 0.6
    again = sum(one == next_ for one, next_ in pairwise(found))
    assert 0.4 < again / (DRAWS - 1) < 0.6


def test_another_seed_or_place_draws_otherwise_and_the_same_one_does_not(drawn: Any) -> None:
    assert drawn(11) == drawn(11)
    assert drawn(11) != drawn(12)
    assert drawn(11) != drawn(11, "static-s13")
