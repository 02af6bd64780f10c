"""What is said of live trials beside simulated ones, and what they need of the host."""

import os

import pytest

from cedos.errors import EmulationError
from emu.experiments.meatballs.offload.service_times import processors_apart
from emu.experiments.trials import agreement


def test_noise_agrees_and_what_is_always_later_does_not() -> None:
    noisy = agreement(
        "s", [[(1.1, 1.0), (2.0, 2.1)], [(1.0, 1.1), (2.1, 2.0)], [(1.3, 1.1), (2.0, 2.1)]]
    )
    assert noisy["agree"]
    assert noisy["difference_s"] == pytest.approx(0.05 / 3, abs=1e-4)
    assert noisy["live_s"] - noisy["simulated_s"] == pytest.approx(noisy["difference_s"], abs=2e-4)
    late = agreement("s", [[(1.10, 1.0)], [(1.11, 1.0)], [(1.09, 1.0)]])
    assert not late["agree"]
    low, high = late["difference_s_ci95"]
    assert 0.0 < low < 0.1 < high
    assert late["difference_median_s"] == pytest.approx(0.1)


def test_the_server_has_a_processor_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = {0, 1, 2}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed))
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda pid, cpus: (allowed.clear(), allowed.update(cpus))
    )
    with processors_apart() as servers:
        assert servers == 2
        assert allowed == {0, 1}
    assert allowed == {0, 1, 2}


def test_one_processor_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    with pytest.raises(EmulationError, match="two"), processors_apart():
        pass
