"""`cedos rule` as a user has it: what may not go over the phone does not, Wi-Fi or no Wi-Fi."""

import subprocess
import sys
from pathlib import Path

import pytest

from emu.places.traces import Trace

SHELL = [sys.executable, "-c", "from emu.commands.cedos_emu import main; main()", "shell"]
CEDOS = f"{sys.executable} -m cedos"
SCRIPT = f"""
    phone() {{ awk '/lte0:/ {{ print $2 + $10 }}' /proc/net/dev; }}
    fetch() {{
        before=$(phone)
        curl -sm 5 -o /dev/null -w "$1 %{{http_code}} %{{time_total}} " http://$2/bytes/200000
        echo $(( $(phone) - before ))
    }}
    begin() {{
        {CEDOS} up --config fast.toml 2>> log & daemon=$!
        for _ in $(seq 40); do {CEDOS} status > /dev/null 2>&1 && break; sleep 0.2; done
    }}
    paths() {{
        mptcpize run curl -sm 8 -o /dev/null http://$2/bytes/6000000 &
        most=0
        for _ in $(seq 20); do
            sleep 0.2
            now=$(ss -Htan dst $2 | awk '{{ print $4 }}' | cut -d: -f1 | sort -u | wc -l)
            [ $now -gt $most ] && most=$now
        done
        echo "$1 $most"
        wait $!
    }}
    begin
    {CEDOS} rule add --host updates.example --never metered > /dev/null
    {CEDOS} rule add --host 198.51.100.4 --only lte0 > /dev/null
    kill $daemon; wait $daemon
    begin
    {CEDOS} rule test eu.updates.example | grep "^1 "
    fetch never_metered updates.example
    fetch only_lte 198.51.100.4
    paths ruled 198.51.100.4
    paths others 198.51.100.3
    ip link set wlan0 down; sleep 1
    fetch other 198.51.100.3
    fetch refused updates.example
    {CEDOS} rule | grep updates
    {CEDOS} rule remove 1 > /dev/null
    fetch free updates.example
    kill $daemon; wait $daemon; cat log >&2
"""


@pytest.mark.usefixtures("host_folders")
def test_hosts_keep_to_their_networks(tmp_path: Path) -> None:
    for kind, rate_bps in (("wifi", 24e6), ("cellular", 12e6)):
        (tmp_path / kind).mkdir()
        Trace.constant(rate_bps, 5).write(tmp_path / kind / f"even-{kind}.trace.gz")
    (tmp_path / "places.csv").write_text("place,wifi,cellular\neven,even-wifi,even-cellular\n")
    # What no rule is about uses both networks for six megabytes, whatever they cost.
    (tmp_path / "fast.toml").write_text('[decision]\nobjective = "max-s"\n')
    done = subprocess.run(
        [*SHELL, "--place", "even", "--places", str(tmp_path), "--", "sh", "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rule, never, only, ruled, others, other, refused, now, free = done.stdout.splitlines()
    assert (ruled, others) == ("ruled 1", "others 2"), "an MPTCP connection's subflows obey, too"
    assert rule.split() == ["1", "updates.example", "all", "never", "metered", "wlan0"]
    assert now.endswith("never metered  refused: no such network is up")
    fetched = {}
    for line in (never, only, other, refused, free):
        what, code, took_s, phone_bytes = line.split()
        fetched[what] = code, float(took_s) < 1.5, int(phone_bytes) > 200_000
    assert fetched == {
        "never_metered": ("200", True, False),
        "only_lte": ("200", True, True),
        "other": ("200", True, True),
        "refused": ("000", True, False),
        "free": ("200", True, True),
    }
