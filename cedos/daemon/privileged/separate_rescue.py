"""The rescue's kernel where the privileges are another process's."""

from collections.abc import Mapping

from cedos.daemon.privileged.process import PrivilegedProcess
from cedos.kernel.sock_diag import ConnectingSocket
from cedos.model import Address, FlowKey


class SeparateRescue:
    """A `RescueKernel`."""

    def __init__(self, process: PrivilegedProcess) -> None:
        self._call = process.call

    def prepare(self) -> None:
        self._call("prepare_rescues")

    def stands(self) -> bool:
        return bool(self._call("rescues_stand"))

    def prepared(self) -> bool:
        return bool(self._call("rescues_prepared"))

    def remove(self) -> bool:
        return bool(self._call("remove_rescues"))

    def connecting(self, key: FlowKey) -> ConnectingSocket | None:
        found: ConnectingSocket | None = self._call("connecting", key)
        return found

    def adopt(self, key: FlowKey) -> None:
        self._call("adopt", key)

    def release(self, key: FlowKey) -> None:
        self._call("release", key)

    def forget(self, key: FlowKey) -> None:
        self._call("forget", key)

    def repeat_early(self) -> None:
        self._call("repeat_early")

    def set_first_timeouts(self, timeouts_s: Mapping[Address, float]) -> None:
        self._call("set_first_timeouts", tuple(timeouts_s.items()))

    def repeat_as_usual(self) -> None:
        self._call("repeat_as_usual")

    def close(self) -> None:
        """Do nothing: the other process keeps its own."""
