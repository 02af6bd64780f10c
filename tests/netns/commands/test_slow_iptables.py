"""iptables waits, for its lock say: the daemon answers and steers meanwhile."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from cedos.model import Budget, Every, Resource

WAITS_S = 1.5
UNTIL = "2099-12-01T00:00:00"


def test_nothing_waits_for_iptables(
    tethered: Any, install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cedos, laptop = install(tethered.laptop), tethered.laptop
    slow, waits = tmp_path / "bin", tmp_path / "waits"
    slow.mkdir()
    for name in ("iptables", "ip6tables"):
        for program in (name, f"{name}-save", f"{name}-restore"):
            real = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            wait = f"[ -e {waits} ] && echo . >>{waits} && sleep {WAITS_S}"
            (slow / program).write_text(f'#!/bin/sh\n{wait}\nexec {real} "$@"\n')
            (slow / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow}:{os.environ['PATH']}")
    with cedos.up():
        waits.touch()
        cedos.client.set_budget(
            Budget("data", Resource.DATA, 100.0, UNTIL, every=Every.MONTH, hard=True)
        )
        laptop.run("ping", "-c", "3", "-i", "0.2", "-I", "lte0", tethered.metered)  # spends it
        slowest_s, until_s = 0.0, time.monotonic() + 2 * WAITS_S
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            cedos.client.budgets()
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            time.sleep(0.05)
        laptop.ip("link", "set", "wlan0", "down")
        began_s = time.monotonic()
        while any(each.name == "wlan0" and each.up for each in cedos.client.status().networks):
            assert time.monotonic() < began_s + WAITS_S / 2
            time.sleep(0.02)
        assert waits.read_text()  # that iptables was called
        waits.unlink()
    print(f"slowest answer {slowest_s:.2f} s")
    assert slowest_s < WAITS_S / 2
