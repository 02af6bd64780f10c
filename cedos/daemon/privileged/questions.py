"""Ask the privileged part for dumps that the kernel gives privileged processes only."""

from collections.abc import Sequence

from cedos.daemon.privileged.process import PrivilegedProcess
from cedos.model import FlowKey


class SeparateQuestions:
    """`PrivilegedQuestions`."""

    def __init__(self, process: PrivilegedProcess) -> None:
        self._call = process.call

    def tracked(self) -> Sequence[tuple[int, bytes]]:
        found: Sequence[tuple[int, bytes]] = self._call("tracked")
        return found

    def mark(self, key: FlowKey) -> int | None:
        mark: int | None = self._call("mark", key)
        return mark
