"""`cedos-emu shell`: any command inside the emulated laptop, as it would run on one."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emu.places.traces import Trace
from emu.testbed.netns import RUN

HOST = (Path("/var/lib/cedos"), Path("/run/cedos"))

SHELL = [sys.executable, "-c", "from emu.commands.cedos_emu import main; main()", "shell"]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """One for all, so that they run one at a time: each shell makes the same folders of the host."""
    folder = tmp_path_factory.mktemp("places")
    for kind, rate_bps in (("wifi", 24e6), ("cellular", 12e6)):
        (folder / kind).mkdir()
        Trace.constant(rate_bps, 5).write(folder / kind / f"even-{kind}.trace.gz")
    (folder / "places.csv").write_text(
        "place,wifi,cellular,wifi_rtt_ms,cellular_rtt_ms\neven,even-wifi,even-cellular,10,150\n"
    )
    return folder


def shell(places, *arguments):
    line = [*SHELL, "--places", str(places), *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def test_output_and_status_are_the_commands(places):
    done = shell(
        places, "--", "sh", "-c", "echo out; echo err >&2; ls /sys/class/net | wc -l; exit 7"
    )
    assert done.returncode == 7
    assert done.stdout.startswith("out\n")
    assert "err\n" in done.stderr
    killed = shell(places, "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 128 + signal.SIGKILL
    missing = shell(places, "--", "no-such-command-here")
    assert missing.returncode == 127
    assert "no-such-command-here" in missing.stderr


def test_both_networks_and_any_name_are_there(places):
    fetch = "curl -sS -o /dev/null -w '%{size_download} %{time_total}\\n'"
    script = (
        f"{fetch} http://any.name/bytes/300000; {fetch} --interface lte0 http://any.name/bytes/5"
    )
    done = shell(places, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    (size, _), (other_size, other_s) = (line.split() for line in done.stdout.splitlines())
    assert (size, other_size) == ("300000", "5")
    assert float(other_s) > 0.3
    assert "RTT 10 ms" in done.stderr
    assert "RTT 150 ms" in done.stderr


def test_a_daemon_with_no_configuration_sees_both_networks(places, tmp_path):
    cedos = f"{sys.executable} -m cedos"
    pinged = 'all("rtt_s" in each["indicators"] for each in json.load(sys.stdin)["networks"])'
    both = f"import json, sys; sys.exit(not {pinged})"
    script = f"""
        export CEDOS_STATE_DIR={tmp_path} CEDOS_RUNTIME_DIR={tmp_path}
        {cedos} up > {tmp_path}/log 2>&1 & daemon=$!
        for _ in $(seq 20); do
            {cedos} status --json 2>/dev/null | tee {tmp_path}/status |
                {sys.executable} -c '{both}' 2>/dev/null && break
            sleep 0.2
        done
        kill $daemon; wait $daemon; cat {tmp_path}/status
    """
    done = shell(places, "--", "sh", "-c", script)
    found = {each["name"]: each["indicators"] for each in json.loads(done.stdout)["networks"]}
    assert found["wlan0"]["rtt_s"]["value"] < 0.15 < found["lte0"]["rtt_s"]["value"]


def test_state_stays_in_the_laptop(places):
    """Also for who drops the environment, as sudo does: the host's own state is covered."""
    script = f"""
        echo $CEDOS_STATE_DIR $CEDOS_RUNTIME_DIR
        {sys.executable} -m cedos budget set data 4GB --until 2036-12-01
        ls $CEDOS_STATE_DIR
        env -i {sys.executable} -m cedos budget
        env -i ls {HOST[0]} {HOST[1]}
    """
    made = [folder for folder in HOST if not folder.exists()]
    for folder in made:
        folder.mkdir()
    marks = [folder / "of-the-host" for folder in HOST]
    try:
        for mark in marks:
            mark.touch()
        before = {folder: sorted(folder.iterdir()) for folder in HOST}
        done = shell(places, "--", "sh", "-c", script)
        assert done.returncode == 0, done.stderr
        state, runtime = done.stdout.split()[:2]
        assert "budgets.json" in done.stdout.splitlines()
        assert "of-the-host" not in done.stdout
        assert not Path(state).exists()
        assert not Path(runtime).exists()
        assert {folder: sorted(folder.iterdir()) for folder in HOST} == before
    finally:
        for mark in marks:
            mark.unlink()
        for folder in made:
            folder.rmdir()


def test_what_programs_keep_for_a_user_stays_in_the_laptop(places, tmp_path, monkeypatch):
    """A gateway's key and clients, and podcasts: not in the host's home, whatever moves that."""
    home, other = tmp_path / "home", tmp_path / "xdg"
    (home / ".local" / "state" / "cedos").mkdir(parents=True)
    (home / ".local" / "state" / "cedos" / "podcasts.json").write_text("of the host")
    other.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(other))
    python = f"{sys.executable} -c"
    script = f"""
        {sys.executable} -m cedos gateway --name 192.0.2.1 --no-cache & gateway=$!
        for _ in $(seq 100); do
            [ -n "$(find $CEDOS_USER_DIR -name gateway-clients.toml)" ] && break; sleep 0.2
        done
        kill $gateway; wait $gateway
        printf '[podcasts.news]\\nurl = "http://198.51.100.1:9/feed.xml"\\n' \\
            > $CEDOS_USER_DIR/config/podcasts.toml
        {python} 'from cedos.commands.sessions.pod import main; main()'
        ls -R $CEDOS_USER_DIR; cat $HOME/.local/state/cedos/podcasts.json
    """
    before = sorted(tmp_path.rglob("*"))
    done = shell(places, "--", "sh", "-c", script)
    assert "gateway-clients.toml" in done.stdout, done.stderr
    assert "podcasts.json" in done.stdout, done.stderr
    assert "of the host" not in done.stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_who_drops_the_environment_keeps_nothing_in_the_host_either(places, tmp_path, monkeypatch):
    """Also where the host has no such folder yet: it would be made, and stay."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    program = f"{sys.executable} -c 'from cedos.commands.sessions.get import main; main()'"
    script = "set -e\n" + "\n".join(
        f"""
        env -i {kept} {sys.executable} -m cedos budget set data 4GB --until 2036-12-01
        env -i {kept} {program} --print-key
        """
        for kept in (f"HOME={home}", "")
    )
    usual = (".config/cedos", ".local/state/cedos", ".cache/cedos")
    kept = [*HOST, home, *(each / name for each in (home, Path("/root")) for name in usual)]
    before = {folder: folder.exists() and sorted(folder.rglob("*")) for folder in kept}
    done = shell(places, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert {folder: folder.exists() and sorted(folder.rglob("*")) for folder in kept} == before


def test_mistakes_are_one_line(places):
    line = [*SHELL, "--place", "evn", "--places", str(places), "--", "true"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "even" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_leaves_nothing_when_it_is_told_to_end(places):
    line = [*SHELL, "--place", "even", "--places", str(places), "--"]
    line += ["sh", "-c", "readlink /proc/self/ns/net; exec sleep 1000"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    inode = int(process.stdout.readline().partition("[")[2].rstrip("]\n"))
    process.stdout.close()
    (mine,) = [path for path in RUN.glob("cedos-*-client") if path.stat().st_ino == inode]
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
    time.sleep(0.05)
    assert not mine.exists()
