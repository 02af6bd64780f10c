"""`cedos rule` as a user has it: what may not go over the phone does not, Wi-Fi or no Wi-Fi."""

import subprocess
import sys
from pathlib import Path

from emu.places.traces import Trace

SHELL = [sys.executable, "-c", "from emu.commands.cedos_emu import main; main()", "shell"]
CEDOS = f"{sys.executable} -m cedos"
SCRIPT = f"""
    phone() {{ awk '/lte0:/ {{ print $2 + $10 }}' /proc/net/dev; }}
    fetch() {{ curl -sm 5 -o /dev/null -w '%{{http_code}} %{{time_total}}\\n' http://$1/bytes/200000; }}
    show() {{ echo "$@"; }}
    {CEDOS} up 2> log & daemon=$!
    for _ in $(seq 50); do {CEDOS} status > /dev/null 2>&1 && break; sleep 0.1; done
    {CEDOS} rule add --host updates.example --never metered > /dev/null
    {CEDOS} rule add --host 198.51.100.4 --only lte0 > /dev/null
    before=$(phone); show allowed $(fetch updates.example)
    show phone_carried $(( $(phone) - before ))
    before=$(phone); show only_lte $(fetch 198.51.100.4)
    show phone_carried $(( $(phone) - before ))
    {CEDOS} rule test eu.updates.example | tail -1
    ip link set wlan0 down; sleep 1
    show other $(fetch 198.51.100.3)
    before=$(phone); show refused $(fetch updates.example)
    show phone_carried $(( $(phone) - before ))
    {CEDOS} rule | tail -2
    kill $daemon; wait $daemon
    {CEDOS} up 2>> log & daemon=$!
    for _ in $(seq 50); do {CEDOS} status > /dev/null 2>&1 && break; sleep 0.1; done
    {CEDOS} rule remove 1
    show free $(fetch updates.example)
    kill $daemon; wait $daemon; cat log >&2
    ip rule show | grep -c '^32' || true
"""


def test_hosts_keep_to_their_networks(tmp_path: Path) -> None:
    for kind, rate_bps in (("wifi", 24e6), ("cellular", 12e6)):
        (tmp_path / kind).mkdir()
        Trace.constant(rate_bps, 5).write(tmp_path / kind / f"even-{kind}.trace.gz")
    (tmp_path / "places.csv").write_text("place,wifi,cellular\neven,even-wifi,even-cellular\n")
    done = subprocess.run(
        [*SHELL, "--place", "even", "--places", str(tmp_path), "--", "sh", "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
