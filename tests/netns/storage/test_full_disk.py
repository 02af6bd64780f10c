"""The real thing: a tiny file system of its own that is really full, or read-only."""

import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "unit" / "storage"
SCRIPT = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_history import a_decision, numbers
from cedos.storage.history import History
folder = Path({folder!r})
now = 0.0
history = History(folder / "history.sqlite", max_waiting=50, clock=lambda: now)
ballast = folder / "ballast"
with ballast.open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
number = 0
while history.problem is None and number < 10_000:
    number += 1
    history.add_decision(a_decision(number))
    history.flush()
assert "full" in history.problem, history.problem
history.add_decision(a_decision(number + 1))
number += 1
assert numbers(history)[:2] == [number, number - 1]
late = History(folder / "second" / "history.sqlite")
late.add_decision(a_decision(1))
assert late.problem is not None
assert numbers(late) == [1]
late.close()
ballast.unlink()
now = 31.0
history.flush()
assert history.problem is None, history.problem
assert numbers(history) == list(range(number, 0, -1))
history.close()
again = History(folder / "history.sqlite")
assert again.notice is None
assert numbers(again) == list(range(number, 0, -1))
again.close()
print("recovered", number)
"""


# The kernel makes a file system read-only where its disk fails, which may be what ended the daemon.
RESTORED = """
import subprocess, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from kit.steer_kernel import MemoryKernel
from cedos.host.steer.journal import Journal
from cedos.host.steer.journal_records import ROUTING, SysctlRecord
from cedos.host.steer.undo import restore
folder, kernel = Path({folder!r}), MemoryKernel()
before = kernel.sysctls["net.mptcp.path_manager"]
journal = Journal(folder)
journal.append(ROUTING)
journal.append(SysctlRecord("net.mptcp.path_manager", before, "userspace"))
kernel.write_sysctl("net.mptcp.path_manager", "userspace")
journal.close()
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
for _ in range(2):
    undone = restore(folder, kernel=kernel)
    assert not undone.left, undone
    assert kernel.sysctls["net.mptcp.path_manager"] == before
print("recovered")
"""


# Usage was moved aside as if it were damaged, so that a hard budget had all of its supply again.
COUNTED = """
import os, subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from cedos.daemon import startup
from cedos.storage.usage import Counter, Usage
folder = Path({folder!r})
path, ballast = folder / "usage.sqlite", folder / "ballast"
usage = Usage(path, "boot")
usage.add("lte0", 1000.0)
usage.counters["1/down"] = Counter("boot", 1, 5)
usage.write(1e9)
usage.close()
with ballast.open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
problems = []
usage = startup.usage(path, AsyncExitStack(), problems)
assert "meanwhile" in usage.problem, usage.problem
assert usage.counters["1/down"].value == 5
usage.add("lte0", 5.0)
assert usage.sum_since(["lte0"], 0.0) == 1005.0
usage.write(1e9 + 5.0)
usage.close()
usage = startup.usage(path, AsyncExitStack(), problems)
assert usage.sum_since(["lte0"], 0.0) == 1005.0
usage.close()
ballast.unlink()
if not os.fork():
    usage = Usage(path, "boot")
    usage.add("lte0", 495.0)
    usage.write(2e9)
    os._exit(0)  # as if it was killed: the last writes are beside the file
assert not os.wait()[1]
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
usage = startup.usage(path, AsyncExitStack(), [])
assert usage.totals == dict(lte0=1500.0), usage.totals
assert "until the daemon ends" in usage.problem, usage.problem
print("recovered")
"""


@pytest.mark.parametrize(
    ("script", "tests"), [(SCRIPT, UNIT), (RESTORED, UNIT.parents[1]), (COUNTED, UNIT)]
)
def test_a_full_and_a_read_only_file_system(tmp_path, script, tests):
    script = script.format(tests=str(tests), folder=str(tmp_path))
    mounted = f"mount -t tmpfs -o size=400k tmpfs '{tmp_path}' && exec \"$@\""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "sh", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("recovered")
