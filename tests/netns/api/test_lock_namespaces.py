"""The lock of a network namespace: one steering daemon in each, whatever its directories are."""

import os
import subprocess
import sys

from kit.waiting import wait_until

HOLDER = """
import sys
from pathlib import Path
from cedos.api.lock import only_daemon
from cedos.errors import AlreadyRunningError
from cedos.host.steer.kernel import iptables
try:
    with only_daemon(Path(sys.argv[1])):
        print("held", flush=True)
        iptables.present("filter")
        sys.stdin.read()
except AlreadyRunningError as error:
    print(error, flush=True)
"""


def start(namespace, pid_file):
    command = (sys.executable, "-c", HOLDER, str(pid_file))
    return namespace.popen(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_per_namespace(make_namespace, tmp_path):
    one, other = make_namespace("one"), make_namespace("other")
    answers = []
    with start(one, tmp_path / "a.pid") as first, start(other, tmp_path / "b.pid") as second:
        answers.extend(process.stdout.readline() for process in (first, second))
        with start(one, tmp_path / "c.pid") as third:
            answers.append(third.communicate(timeout=20)[0])
        first.kill()
        first.wait()
        with start(one, tmp_path / "c.pid") as third:
            answers.append(third.communicate(timeout=20)[0])
        second.communicate(timeout=20)
    assert answers[:2] == ["held\n", "held\n"]
    assert f"(process {first.pid}) runs already: it steers this network namespace" in answers[2]
    assert answers[3] == "held\n"


def test_iptables_of_a_killed_process_holds_the_namespace(make_namespace, tmp_path, monkeypatch):
    """`cedos restore` found nothing yet, and then its chains were put in."""
    here, slow = make_namespace("here"), tmp_path / "iptables"
    slow.write_text(f"#!/bin/sh\necho > {tmp_path}/begun\nsleep 4\n")
    slow.chmod(0o755)
    for name in ("iptables-save", "ip6tables", "ip6tables-save"):
        (tmp_path / name).symlink_to(slow)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with start(here, tmp_path / "a.pid") as first:
        assert first.stdout.readline() == "held\n"
        wait_until((tmp_path / "begun").exists)
        first.kill()
    with start(here, tmp_path / "b.pid") as second:
        assert "runs already" in second.communicate(timeout=20)[0]

    def held():
        with start(here, tmp_path / "c.pid") as third:
            line = third.stdout.readline()
            third.kill()
        return line == "held\n"

    wait_until(held)
