"""The lock of a network namespace: one steering daemon in each, whatever its directories are."""

import subprocess
import sys

HOLDER = """
import sys
from pathlib import Path
from cedos.api.lock import only_daemon
from cedos.errors import AlreadyRunningError
try:
    with only_daemon(Path(sys.argv[1])):
        print("held", flush=True)
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
