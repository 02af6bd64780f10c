"""What a process holds, counted by a copy of it."""

import subprocess
import sys
from pathlib import Path

from emu.testbed.programs.objects.counted import Counted, countable

HOLDS = """
held = [str(number) for number in range(30000)]
print(flush=True)
while input() == 'more':
    held += [{number: number} for number in range(1000)]
    print(flush=True)
"""


def test_what_has_grown_between_two_counts_is_told(tmp_path: Path) -> None:
    with countable(tmp_path):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, "cedos"], stdin=-1, stdout=-1, text=True, bufsize=1
        )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdout.readline()
        first = Counted.ask(process.pid, tmp_path)
        process.stdin.write("more\n")
        process.stdout.readline()
        second = Counted.ask(process.pid, tmp_path)
        process.stdin.write("end\n")
    assert process.returncode == 0
    assert first.types["builtins.str"][0] > 30_000
    assert first.memory_kb["heap"] > 0
    assert second.types["builtins.dict"][0] - first.types["builtins.dict"][0] in range(990, 1010)
    assert "builtins.dict +" in second.since(first)
    assert "builtins.str" not in second.since(first)
