"""`cedos relay`'s command line, its check of the host, and the files that belong to it."""

import configparser
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_a_check_tells_programs_whether_it_could_run(cedos: Any, port: int) -> None:
    result = cedos("relay", "--check", "--json", "--listen", f"127.0.0.1:{port}")
    answer = json.loads(result.stdout)
    topics = {finding["topic"]: finding["state"] for finding in answer["findings"]}
    assert topics[f"listen at 127.0.0.1:{port}"] == "ok"
    assert answer["can_run"] is (result.exit_code == 0)
    assert "MPTCP" in topics


def test_a_port_that_is_taken_is_told(cedos: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        checked = cedos("relay", "--check", "--listen", where)
        assert checked.exit_code == 4
        assert f"missing  listen at {where}" in checked.stdout
        run = cedos("relay", "--listen", where)
    assert run.exit_code == 4
    assert run.stderr == f"cedos: cannot listen at {where}: Address already in use\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--listen", "0"), "is not 3128, 192.0.2.1:3128"),
        (("--listen", "www.example.org:80"), "is not 3128"),
        (("--allow", "10.0.0.1/8"), "is not a network"),
        (("--idle", "soon"), "is no duration"),
        (("--json",), "--json goes with --check"),
        (("--listen", "80", "--transparent", "80"), "name one port twice"),
        (("--token-file", "/nonexistent"), "No such file"),
    ],
)
def test_what_cannot_be_meant_is_refused(cedos: Any, arguments: tuple[str, ...], says: str) -> None:
    result = cedos("relay", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_the_unit_has_no_privilege(cedos: Any) -> None:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str
    parsed.read_string(cedos("example", "relay-unit").stdout)
    service = parsed["Service"]
    assert service["CapabilityBoundingSet"] == ""
    assert "AmbientCapabilities" not in service
    program, command = service["ExecStart"].split()[:2]
    assert (Path(program), command) == (Path(sys.executable).with_name("cedos"), "relay")
    assert service["Type"] == "notify"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit_of_the_relay(cedos: Any, tmp_path: Path) -> None:
    unit = tmp_path / "cedos-relay.service"
    unit.write_text(cedos("example", "relay-unit").stdout)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, complaints) == (0, [])


def test_the_rules_are_a_script(cedos: Any, tmp_path: Path) -> None:
    script = tmp_path / "relay-rules"
    script.write_text(cedos("example", "relay-rules").stdout)
    subprocess.run(["sh", "-n", str(script)], check=True, timeout=10)
    wrong = subprocess.run(
        ["sh", str(script), "sideways", "eth1", "80"], check=False, capture_output=True, timeout=10
    )
    assert wrong.returncode == 2
