"""The doctor on whole hosts made of namespaces: as root and not, and without a trace."""

import json
import sys

import pytest

from cedos.doctor import Files, FindingState, kernel
from cedos.host.steer.kernel import first_timeout, ipset

DOCTOR = (sys.executable, "-m", "cedos", "doctor", "--json")
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs")


@pytest.fixture
def laptop(tethered):
    """A host with Wi-Fi and a phone."""
    return tethered.laptop


def examine(laptop, folder, *before, status=0):
    variables = (f"CEDOS_STATE_DIR={folder}/state", f"CEDOS_RUNTIME_DIR={folder}/run")
    done = laptop.run("env", *variables, *before, *DOCTOR, check=False)
    assert done.returncode == status, done.stderr
    facts = json.loads(done.stdout)
    assert facts["can_run"] == (status == 0)
    return {finding["topic"]: finding for finding in facts["findings"]}


def everything(laptop):
    commands = (
        "-d address", "rule", "-6 rule", "route show table all", "-6 route show table all",
        "mptcp endpoint",
    )  # fmt: skip
    shown = [laptop.ip(*command.split()) for command in commands]
    sysctls = laptop.run("sh", "-c", "grep -rH . /proc/sys/net/mptcp")
    return "\n".join([*shown, sysctls.stdout])


@pytest.mark.parametrize("before", [(), AS_NOBODY], ids=["root", "nobody"])
def test_a_laptop_that_can_run_it(laptop, tmp_path, before):
    was = everything(laptop)
    found = examine(laptop, tmp_path, *before)
    assert everything(laptop) == was
    assert list(tmp_path.iterdir()) == []
    assert found["networks"]["found"] == "wlan0 (wifi), lte0 (cellular, metered)"
    for topic in ("MPTCP", "VPN and foreign rules"):
        assert found[topic]["state"] == "ok", found[topic]
    assert found["privileges"]["state"] == ("limited" if before else "ok")
    assert found["daemon"]["found"] == "not running"


def test_one_network_leaves_nothing_to_choose(laptop, tmp_path):
    laptop.ip("link", "set", "lte0", "down")
    found = examine(laptop, tmp_path)
    assert (
        found["networks"]["found"] == "only 1 usable: wlan0 (wifi), lte0 (cellular, metered, down)"
    )
    assert found["networks"]["state"] == "limited"
    assert found["networks"]["lost"] == "nothing to choose between until another one comes"


def test_who_else_is_at_work(laptop, tmp_path):
    laptop.sysctl("net.mptcp.pm_type", 1)
    laptop.ip("tuntap", "add", "vpn0", "mode", "tun")
    laptop.ip("address", "add", "10.8.0.2/24", "dev", "vpn0")
    laptop.ip("link", "set", "vpn0", "up")
    laptop.ip("route", "add", "default", "dev", "vpn0", "metric", "1")
    found = examine(laptop, tmp_path)
    assert found["MPTCP path manager"]["state"] == "limited"
    assert "a VPN (vpn0) carries all IPv" in found["VPN and foreign rules"]["found"]
    laptop.sysctl("net.mptcp.enabled", 0)
    assert examine(laptop, tmp_path)["MPTCP"]["remedy"] == "sysctl net.mptcp.enabled=1"


def test_a_daemon_that_was_killed(laptop, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "journal.jsonl").write_text("{}\n")
    assert examine(laptop, tmp_path)["daemon"]["remedy"] == "cedos restore"


def test_it_is_found_and_this_namespace_is_left_alone(make_namespace):
    here = make_namespace("here")
    before = here.run("tc", "qdisc", "show").stdout
    with here.entered():
        assert kernel.second_wall().state is FindingState.OK
    assert here.run("tc", "qdisc", "show").stdout == before


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text("tmpfs / tmpfs rw 0 0\n")
    assert "no cgroup v2" in kernel.early_rescue(Files(tmp_path)).found

    def refused(*_):
        raise PermissionError(1, "no")

    monkeypatch.setattr(first_timeout, "try_out", refused)
    assert "CAP_BPF" in kernel.early_rescue(Files()).found
    monkeypatch.setattr(ipset, "_TYPE", b"hash:no,such\0")
    assert kernel.rescue().state is FindingState.MISSING
