"""The real kernel's part of a rescue, and the packet filter's rules for rescued flows.

Two chains, through the real `iptables` and `ip6tables`, put in once: a rescue itself only changes the
sets that they ask (`ipset`). `CEDOS_NAT` gives a rescued flow the address of the interface that
it leaves by. `CEDOS_LATE` stands before connection tracking, where an answer over the rescuing network
still bears that network's address: what comes there to the socket's own address comes from the network
that the flow was rescued from, and is dropped, or two connections would live. Only the flags that
could begin or end one are examined, so that other packets cost nothing.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from cedos.errors import HostError
from cedos.host.steer.kernel import ipset, iptables
from cedos.host.steer.kernel.first_timeout import FirstTimeouts
from cedos.host.steer.kernel.iptables import Chain
from cedos.kernel import conntrack, sock_diag, sysctl
from cedos.kernel.bpf import root_cgroup
from cedos.kernel.netlink import NETLINK_NETFILTER, NETLINK_SOCK_DIAG, Requester
from cedos.kernel.sock_diag import ConnectingSocket
from cedos.model import Address, FlowKey

_MOUNTS: Final = Path("/proc/self/mounts")
_RETRIES, _USUAL_RETRIES = "net.ipv4.tcp_syn_retries", 6

_TABLES: Final = ("raw", "nat")
_LATE: Final = "-m set --match-set {set} dst,dst,src -j DROP"
_CHAINS: Final = (
    Chain(
        "raw",
        "CEDOS_LATE",
        "PREROUTING",
        tuple(f"-p tcp --tcp-flags {flag} {flag} {_LATE}" for flag in ("SYN", "RST")),
    ),
    Chain(
        "nat",
        "CEDOS_NAT",
        "POSTROUTING",
        ("-p tcp -m set --match-set {set} src,src,dst -j MASQUERADE",),
    ),
)


class LinuxRescue:
    """A `RescueKernel`. All sockets are opened when they are needed first, and kept."""

    def __init__(self) -> None:
        self._filter: Requester | None = None
        self._diag: Requester | None = None
        self._timeouts: FirstTimeouts | None = None

    def _netfilter(self) -> Requester:
        if self._filter is None:
            self._filter = Requester(NETLINK_NETFILTER)
        return self._filter

    def prepare(self) -> None:
        # With a socket of its own: it may be called from another thread than the rest.
        requester = Requester(NETLINK_NETFILTER)
        try:
            for version in iptables.programs():
                ipset.create(requester, version)
        finally:
            requester.close()
        iptables.put_in(_CHAINS, ipset.NAMES)

    def stands(self) -> bool:
        return iptables.stand(_CHAINS)

    def is_prepared(self) -> bool:
        if iptables.present(*_TABLES):
            return True
        try:
            requester = self._netfilter()
        except HostError:
            return False
        return any(ipset.exists(requester, version) for version in (4, 6))

    def remove(self) -> bool:
        done = iptables.remove(*_TABLES)
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

    def repeat_early(self) -> None:
        self.repeat_as_usual()
        self._timeouts = FirstTimeouts(
            root_cgroup(_MOUNTS.read_text()), int(sysctl.read(_RETRIES) or _USUAL_RETRIES)
        )

    def set_first_timeouts(self, timeouts_s: Mapping[Address, float]) -> None:
        if self._timeouts is not None:
            self._timeouts.set(timeouts_s)

    def repeat_as_usual(self) -> None:
        if self._timeouts is not None:
            self._timeouts.close()
            self._timeouts = None

    def close(self) -> None:
        self.repeat_as_usual()
        for requester in (self._filter, self._diag):
            if requester is not None:
                requester.close()
        self._filter = self._diag = None
