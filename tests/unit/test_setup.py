"""Set-up by `setup.sh`: what it leaves behind if it is interrupted, and what it trusts."""

import os
import re
import signal
import subprocess

import pytest
from kit.waiting import wait_until

from emu import ROOT

SCRIPT = (ROOT / "setup.sh").read_text()


def install(folder, apt_get):
    """Run `_install_packages` alone, with an apt-get of ours."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("apt-get", apt_get), ("systemctl", "exit 0")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (function,) = re.findall(
        r"^_install_packages\(\) \{\n.*?^\}\n", SCRIPT, re.MULTILINE | re.DOTALL
    )
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "POLICY": str(folder / "policy"),
    }
    return subprocess.Popen(
        ["bash", "-c", f"set -eu\n{function}\n_install_packages nginx-light"],
        env=environment,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_installation_leaves_no_policy(tmp_path, number):
    """With it left behind, no package's service starts on that host any more."""
    process = install(tmp_path, f"touch {tmp_path}/begun; exec sleep 60")
    wait_until((tmp_path / "begun").exists)
    assert (tmp_path / "policy").exists()
    os.killpg(process.pid, number)
    assert process.wait(20) != 0
    wait_until(lambda: not (tmp_path / "policy").exists())


@pytest.mark.parametrize(("apt_get", "status"), [("exit 0", 0), ("exit 100", 4)])
def test_no_policy_is_left_whatever_becomes_of_it(tmp_path, apt_get, status):
    assert install(tmp_path, apt_get).wait(20) == status
    assert not (tmp_path / "policy").exists()


def test_one_that_was_left_is_taken_away_and_another_ones_stays(tmp_path):
    left = re.search(r"ours='([^']*)'", SCRIPT)
    for text, stays in (
        (f"#!/bin/sh\n{left[1]}\nexit 101\n", False),
        ("#!/bin/sh\nexit 0\n", True),
    ):
        folder = tmp_path / str(stays)
        folder.mkdir()
        (folder / "policy").write_text(text)
        assert install(folder, "exit 0").wait(20) == 0
        assert (folder / "policy").exists() is stays


def test_what_it_installs_of_python_has_a_version_and_a_hash():
    for line in SCRIPT.splitlines():
        if "pip install" in line:
            assert "--require-hashes" in line or "--no-deps" in line, line
    assert re.search(r"uv==[0-9.]+ ", SCRIPT)
