"""Two peers in namespaces: commands to them, and what they answer."""

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace


class Remote:
    def __init__(self, where: Namespace) -> None:
        self._process: subprocess.Popen[str] = where.popen(
            sys.executable, "-m", "emu.workloads.sessions",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def start(self, do: str, **options: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **options}) + "\n")
        self._process.stdin.flush()

    def answer(self, limit_s: float | None = None) -> dict[str, Any]:
        """What came of it.

        EmulationError: it failed, the process died, or nothing came within the limit.
        """
        assert self._process.stdout is not None
        # An answer is one line, and nothing else comes: no line waits in Python's own buffer.
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            raise EmulationError(f"a peer of the bench did not answer within {limit_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise EmulationError("a peer of the bench died; its error is above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EmulationError(f"a peer of the bench: {answer['error']}")
        return answer

    def do(self, do: str, **options: Any) -> dict[str, Any]:
        self.start(do, **options)
        return self.answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Pair:
    """A client and a server that listens on `address`."""

    def __init__(self, near: Remote, far: Remote, address: str) -> None:
        self.near, self.far = near, far
        self._ports = far.do("listen", address=address)
        self._to = address

    def there(self, mode: str) -> dict[str, Any]:
        port = self._ports["raw" if mode == "raw" else "session"]
        return {"mode": mode, "to": self._to, "port": port, "key": self._ports["key"]}

    def both(
        self,
        near: str,
        far: str,
        mode: str,
        far_options: dict[str, Any],
        *,
        limit_s: float | None = None,
        **options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """A command for each end at the same time; both answers, the client's first."""
        self.far.start(far, **far_options)
        self.near.start(near, **self.there(mode) | options)
        return self.near.answer(limit_s), self.far.answer(limit_s)


@contextmanager
def pair(near: Namespace, far: Namespace, address: str) -> Iterator[Pair]:
    with ExitStack() as stack:
        one = Remote(near)
        stack.callback(one.close)
        other = Remote(far)
        stack.callback(other.close)
        yield Pair(one, other, address)
