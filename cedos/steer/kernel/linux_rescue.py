"""The real kernel's part of a rescue. Its namespace is the one of the thread that makes it."""

from cedos.errors import HostError
from cedos.model import FlowKey
from cedos.steer.kernel import conntrack, ipset, rescue_filter, rescue_socket
from cedos.steer.kernel.rescue import Connecting
from cedos.steer.kernel.rescue_netlink import NETLINK_NETFILTER, Wire


class LinuxRescue:
    """See `RescueKernel`. All sockets are opened when they are needed first, and kept."""

    def __init__(self) -> None:
        self._filter: Wire | None = None
        self._diag: Wire | None = None

    def _netfilter(self) -> Wire:
        if self._filter is None:
            self._filter = Wire(NETLINK_NETFILTER)
        return self._filter

    def prepare(self) -> None:
        """See `RescueKernel`."""
        versions = rescue_filter.versions()
        for version in versions:
            ipset.create(self._netfilter(), version)
        rescue_filter.put_in()

    def prepared(self) -> bool:
        """See `RescueKernel`."""
        if rescue_filter.present():
            return True
        try:
            wire = self._netfilter()
        except HostError:
            return False
        return any(ipset.exists(wire, version) for version in (4, 6))

    def remove(self) -> bool:
        """See `RescueKernel`."""
        done = rescue_filter.take_out()
        for version in (4, 6):
            if ipset.exists(self._netfilter(), version):
                done = ipset.destroy(self._netfilter(), version) or done
        return done

    def connecting(self, key: FlowKey) -> Connecting | None:
        """See `RescueKernel`."""
        if self._diag is None:
            self._diag = Wire(rescue_socket.NETLINK_SOCK_DIAG)
        return rescue_socket.connecting(self._diag, key)

    def adopt(self, key: FlowKey) -> None:
        """See `RescueKernel`."""
        ipset.add(self._netfilter(), key)

    def release(self, key: FlowKey) -> None:
        """See `RescueKernel`."""
        ipset.delete(self._netfilter(), key)

    def forget(self, key: FlowKey) -> None:
        """See `RescueKernel`."""
        conntrack.forget(self._netfilter(), key)

    def close(self) -> None:
        """See `RescueKernel`."""
        for wire in (self._filter, self._diag):
            if wire is not None:
                wire.close()
        self._filter = self._diag = None
