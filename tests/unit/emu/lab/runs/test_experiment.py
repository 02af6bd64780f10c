"""One policy's part of a run: the transfers' records, and a start that takes longer than expected."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cedos.errors import EmulationError
from cedos.model import Direction
from emu.lab.runs import experiment
from emu.lab.runs.browsing import Browsed
from emu.lab.runs.experiment import _Result
from emu.lab.runs.scenario import Load, Scenario
from emu.testbed.counters import CarriedBytes
from emu.workloads.mixed import Completed, PlannedTransfer


@pytest.mark.parametrize(
    ("censored", "moved", "received"),
    [
        (False, CarriedBytes(1_000_400, 0), 1_000_000),
        (True, CarriedBytes(200_000, 50_000), 250_000),
        (True, CarriedBytes(0, 0), 0),
    ],
)
def test_a_transfer_that_was_cut_received_what_its_connection_carried(
    censored: bool, moved: CarriedBytes, received: int
) -> None:
    planned = PlannedTransfer(0, "a", 0.0, "198.51.100.2", Direction.DOWN, 1_000_000, mptcp=True)
    done = Completed(planned, 5.0, 30.0, censored, "192.0.2.1", 5000, None)
    carried = {("192.0.2.1", 5000, "198.51.100.2"): moved}
    result = _Result(0.0, 0.0, [done], carried, [], [], [], [], Browsed(), ())
    assert result.received_bytes(done) == received


def test_a_policy_that_starts_late_gets_longer_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = experiment._StartedLateError("slow took longer than warm_up_s = 4 to start")
    warm_ups_s: list[float] = []

    def run_policy(name: str, repeat: int, plan: Any, wanted: Any, of: Scenario, *_: Any) -> str:
        folder = tmp_path / f"{name}-{repeat}"
        folder.mkdir()  # fails where the first try left its logs
        warm_ups_s.append(of.warm_up_s)
        if len(warm_ups_s) == 1 or name == "always-late":
            raise late
        return "result"

    monkeypatch.setattr(experiment, "_run_policy", run_policy)
    wanted = Scenario(load=(Load("a", "198.51.100.2", "down", 1, 2, per_minute=1.0),))
    folder: Any = SimpleNamespace(logs=tmp_path)

    def run(name: str) -> Any:
        nothing: Any = None
        return experiment._run_ready_policy(name, 0, [], nothing, wanted, nothing, folder)

    assert run("slow") == "result"
    assert warm_ups_s == [4.0, 12.0]
    with pytest.raises(EmulationError, match="took longer"):
        run("always-late")
    assert len(warm_ups_s) == 4
