"""The real kernel's part of a rescue. Its namespace is the one of the thread that makes it."""

from contextlib import suppress

from cedos.errors import HostError
from cedos.kernel import conntrack, sock_diag
from cedos.kernel.netlink import NETLINK_NETFILTER, NETLINK_SOCK_DIAG, Requester
from cedos.kernel.sock_diag import ConnectingSocket
from cedos.model import FlowKey
from cedos.steer.kernel import ipset, iptables, rescue_filter


class LinuxRescue:
    """A `RescueKernel`. All sockets are opened when they are needed first, and kept."""

    def __init__(self) -> None:
        self._filter: Requester | None = None
        self._diag: Requester | None = None

    def _netfilter(self) -> Requester:
        if self._filter is None:
            self._filter = Requester(NETLINK_NETFILTER)
        return self._filter

    def prepare(self) -> None:
        # With a socket of its own: it may be called from another thread than the rest.
        requester = Requester(NETLINK_NETFILTER)
        try:
            for version in rescue_filter.versions():
                ipset.create(requester, version)
        finally:
            requester.close()
        rescue_filter.put_in()

    def stands(self) -> bool:
        return iptables.stands(rescue_filter.CHAINS)

    def prepared(self) -> bool:
        if rescue_filter.present():
            return True
        try:
            requester = self._netfilter()
        except HostError:
            return False
        return any(ipset.exists(requester, version) for version in (4, 6))

    def remove(self) -> bool:
        done = rescue_filter.take_out()
        try:
            requester = self._netfilter()
        except HostError:  # a kernel without it has no sets
            return done
        for version in (4, 6):
            if ipset.exists(requester, version):
                done = ipset.destroy(requester, version) or done
        return done

    def connecting(self, key: FlowKey) -> ConnectingSocket | None:
        if self._diag is None:
            self._diag = Requester(NETLINK_SOCK_DIAG)
        request = sock_diag.connecting_request(key)
        try:
            # Without ACK: the answer itself ends it.
            (answer,) = self._diag.ask(sock_diag.SOCK_DIAG_BY_FAMILY, request, 0)
        except FileNotFoundError:
            return None
        return sock_diag.parse_connecting(answer)

    def adopt(self, key: FlowKey) -> None:
        ipset.add(self._netfilter(), key)

    def release(self, key: FlowKey) -> None:
        ipset.delete(self._netfilter(), key)

    def forget(self, key: FlowKey) -> None:
        with suppress(FileNotFoundError):  # one that is not tracked
            self._netfilter().ask(conntrack.DELETE, conntrack.delete_request(key))

    def close(self) -> None:
        for requester in (self._filter, self._diag):
            if requester is not None:
                requester.close()
        self._filter = self._diag = None
