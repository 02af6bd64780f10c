"""The kernel's own alarm timer; whether a clock could wake this host is a folder of the test's."""

import errno
import os
import select
import subprocess
import sys
import time

import pytest

from cedos.host.privileged.part import WakeTimer


@pytest.fixture
def rtcs(tmp_path):
    power = tmp_path / "rtc0" / "device" / "power"
    power.mkdir(parents=True)
    (power / "wakeup").write_text("enabled\n")
    return tmp_path


@pytest.fixture
def timer(rtcs):
    made = WakeTimer(rtcs)
    try:
        made.set(time.time() + 60.0)
    except PermissionError:
        pytest.skip("needs CAP_WAKE_ALARM")
    yield made
    made.close()


def gone_off(timer, within_s):
    return bool(select.select([timer.fileno()], [], [], within_s)[0])


def test_the_kernel_takes_it_moves_it_and_takes_it_away(timer):
    assert not gone_off(timer, 0.02)
    begun_s = time.monotonic()
    timer.set(time.time() + 0.15)
    assert gone_off(timer, 1.0)
    assert time.monotonic() - begun_s > 0.14
    timer.set(time.time() + 0.05)
    timer.set(0.0)
    assert not gone_off(timer, 0.15)


def test_without_a_clock_that_wakes_it_refuses(rtcs, tmp_path):
    for made in (WakeTimer(tmp_path / "none"), WakeTimer(rtcs)):
        (rtcs / "rtc0/device/power/wakeup").write_text("disabled\n")
        with pytest.raises(OSError, match="no clock") as raised:
            made.set(time.time() + 60.0)
        assert raised.value.errno == errno.ENODEV
        made.set(0.0)  # nothing was set
        assert made.fileno() == -1
        made.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives capabilities up")
def test_without_the_capability_the_kernel_refuses(rtcs):
    program = (
        "import sys, pathlib, time; from cedos.kernel import privileges;"
        "from cedos.host.privileged.part import WakeTimer; privileges.give_up();"
        "WakeTimer(pathlib.Path(sys.argv[1])).set(time.time() + 60)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(rtcs)], check=False, capture_output=True, text=True
    )
    assert "PermissionError" in done.stderr.splitlines()[-1]
