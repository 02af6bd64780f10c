"""The files that `cedos example` prints can be used as they are."""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cedos.config import Config, load


def unit(cedos: Any) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str
    parsed.read_string(cedos("example", "unit").stdout)
    return parsed


def test_configuration(cedos: Any, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(cedos("example", "config").stdout)
    assert load(tmp_path / "c.toml") == Config()


def test_the_unit_has_two_privileges_and_a_watchdog(cedos: Any) -> None:
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


def test_the_unit_names_this_installation(cedos: Any) -> None:
    program = unit(cedos)["Service"]["ExecStart"].split()[0]
    assert Path(program) == Path(sys.executable).with_name("cedos")


@pytest.mark.parametrize("name", ["unit", "relay-unit"])
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units(cedos: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "cedos.service").write_text(cedos("example", name).stdout)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "cedos.service")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    complaints = [line for line in done.stderr.splitlines() if "cedos.service" in line]
    assert (done.returncode, complaints) == (0, [])


def test_an_installation_that_the_service_could_not_read(
    cedos: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "home" / "bin"
    folder.mkdir(parents=True)
    (folder / "cedos").touch()
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    for parent in (folder, *folder.parents[:-2]):
        parent.chmod(0o755)
    assert cedos("example", "unit").stderr == ""
    (tmp_path / "home").chmod(0o700)
    result = cedos("example", "unit")
    assert result.exit_code == 0
    assert f"ExecStart={folder}/cedos up\n" in result.stdout
    assert f"may not enter {tmp_path}/home: " in result.stderr
