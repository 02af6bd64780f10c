"""The files that `cedos example` prints can be used as they are."""

import configparser
import shlex
import shutil
import subprocess
import sys

import pytest

from cedos.commands import example
from cedos.config import Config, load


def unit(cedos):
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str
    parsed.read_string(cedos("example", "unit").stdout)
    return parsed


def test_configuration(cedos, tmp_path):
    (tmp_path / "c.toml").write_text(cedos("example", "config").stdout)
    assert load(tmp_path / "c.toml") == Config()


def test_the_unit_has_two_privileges_and_a_watchdog(cedos):
    service = unit(cedos)["Service"]
    for key in ("AmbientCapabilities", "CapabilityBoundingSet"):
        assert service[key] == "CAP_NET_ADMIN CAP_NET_RAW CAP_BPF"
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > 0
    assert service["ExecStopPost"].endswith(" restore")
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert (service["StateDirectory"], service["RuntimeDirectory"]) == ("cedos", "cedos")
    # What would take from it what it works on.
    assert service["ReadWritePaths"] == "/proc/sys/net"
    assert "PrivateNetwork" not in service
    assert {"AF_NETLINK", "AF_PACKET"} <= set(service["RestrictAddressFamilies"].split())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(cedos, tmp_path):
    (tmp_path / "cedos.service").write_text(cedos("example", "unit").stdout)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "cedos.service")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    complaints = [line for line in done.stderr.splitlines() if "cedos.service" in line]
    assert (done.returncode, complaints) == (0, [])


@pytest.mark.parametrize(("before", "meanwhile", "after"), [(1, None, 1), (0, None, 0), (0, 1, 1)])
def test_the_gateways_unit_gives_back_what_it_has_taken(cedos, tmp_path, before, meanwhile, after):
    """The daemon, if it began before and ended first, has given it back by then: it became 0 for good."""
    setting = tmp_path / "proc/sys/net/ipv4/tcp_slow_start_after_idle"
    setting.parent.mkdir(parents=True)
    (tmp_path / "run").mkdir()
    setting.write_text(f"{before}\n")
    unit = cedos("example", "gateway-unit").stdout
    lines = dict(line.split("=-+", 1) for line in unit.splitlines() if "=-+" in line)

    def run(name):
        line = (
            lines[name].replace("/proc/", f"{tmp_path}/proc/").replace("/run/", f"{tmp_path}/run/")
        )
        subprocess.run(shlex.split(line), check=False, timeout=10)

    run("ExecStartPre")
    assert setting.read_text() == "0\n"
    if meanwhile is not None:
        setting.write_text(f"{meanwhile}\n")
    kept = setting.read_text()
    run("ExecStopPost")
    # (In the kernel a write of nothing changes nothing.)
    assert (setting.read_text() or kept) == f"{after}\n"
    assert not list((tmp_path / "run").iterdir())


def installed(folder, monkeypatch):
    """Pretend that cedos and its interpreter lie in a folder that all users may enter."""
    folder.mkdir(parents=True)
    (folder / "cedos").touch()
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setattr(sys, "base_prefix", str(folder))
    monkeypatch.setattr(example, "SHIPPED_FILE", folder / "cedos.toml")
    monkeypatch.setattr(example, "_OWN_OF_SERVICES", set())
    for parent in (folder, *folder.parents[:-2]):
        parent.chmod(0o755)


@pytest.mark.parametrize("what", ["unit", "gateway-unit", "redirect-unit"])
@pytest.mark.parametrize("closed", ["home", "home/bin"])
def test_a_unit_that_could_not_start_is_refused(cedos, tmp_path, monkeypatch, what, closed):
    installed(tmp_path / "home" / "bin", monkeypatch)
    open_one = cedos("example", what)
    assert open_one.exit_code == 0, open_one.stderr
    (tmp_path / closed).chmod(0o700)
    result = cedos("example", what)
    assert result.exit_code == 4
    assert f"cannot start: it needs {tmp_path}/home/bin/" in result.stderr
    assert f"its user may not enter {tmp_path}/{closed}. Install" in result.stderr


def test_a_unit_for_a_program_in_a_private_folder_is_refused(cedos, tmp_path, monkeypatch):
    installed(tmp_path / "bin", monkeypatch)
    monkeypatch.setattr(example, "_OWN_OF_SERVICES", {tmp_path})
    result = cedos("example", "unit")
    assert result.exit_code == 4
    assert f"a service has a {tmp_path} of its own" in result.stderr


def test_the_source_of_the_package_must_be_readable_too(cedos, tmp_path, monkeypatch):
    installed(tmp_path / "opt", monkeypatch)
    clone = tmp_path / "clone"
    clone.mkdir(mode=0o700)
    monkeypatch.setattr(example, "SHIPPED_FILE", clone / "cedos.toml")
    result = cedos("example", "unit")
    assert result.exit_code == 4
    assert f"may not enter {clone}." in result.stderr


def test_a_users_own_service_starts_from_a_home(cedos, tmp_path, monkeypatch):
    installed(tmp_path / "home" / "bin", monkeypatch)
    (tmp_path / "home").chmod(0o700)
    result = cedos("example", "forward-unit")
    assert result.exit_code == 0
    assert f"ExecStart={tmp_path}/home/bin/cedos forward" in result.stdout
