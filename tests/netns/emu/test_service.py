"""Programs that serve in a namespace are ended with all that they began."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace
from emu.testbed.services import Service

MakeNamespace = Callable[[str], Namespace]

# A shell that leaves a child behind, tells its number, and ends or stays.
BEGINS = "sleep 600 & echo $! > {child}; {then}"


def begun(make_namespace: MakeNamespace, folder: Path, then: str) -> tuple[Service, int]:
    """The service, and the child that it began."""
    child = folder / "child"
    command = BEGINS.format(child=child, then=then)
    service = Service(make_namespace("host"), "sh", "-c", command, output=folder / "sh.out")
    until_s = time.monotonic() + 20
    while not (child.exists() and child.read_text().strip()):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return service, int(child.read_text())


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def gone(pid: int) -> bool:
    until_s = time.monotonic() + 10
    while alive(pid) and time.monotonic() < until_s:
        time.sleep(0.01)
    return not alive(pid)


@pytest.mark.parametrize("then", ["exit 0", "exec sleep 600", "trap '' TERM; wait"])
def test_children_do_not_stay_behind(
    make_namespace: MakeNamespace, tmp_path: Path, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emu.testbed.services._STOP_TIMEOUT_S", 0.3)
    service, child = begun(make_namespace, tmp_path, then)
    if then == "exit 0":
        with pytest.raises(EmulationError, match="does not answer"):
            service.wait_for(lambda: False)
    assert alive(child)
    service.close()
    assert gone(child)
    service.close()


def test_a_program_that_ended_alone_is_closed_without_a_fuss(
    make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    service = Service(make_namespace("host"), "sh", "-c", "echo so", output=tmp_path / "sh.out")
    with pytest.raises(EmulationError, match="does not answer: so"):
        service.wait_for(lambda: False)
    service.close()
    service.close()
