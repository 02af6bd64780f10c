"""Rescues first packets from dead networks.

A flow whose socket still waits for its first answer is led over another network, for its life, and the
program notices nothing. The kernel itself sends the first packet again; what is changed is where that
goes: a rule of the flow's own leads it to the other network, connection tracking forgets that it ever
went elsewhere, and the packet filter gives it the other network's address. From the moment of the
rescue on, whatever the first network still answers is dropped, so that never two connections live.
"""

from collections.abc import Mapping
from typing import Final

from cedos.errors import HostError, SteeringError
from cedos.host.steer.journal_records import MPTCP_FALLBACK, RESCUE, Append, change_sysctl
from cedos.host.steer.kernel.interface import SteeringKernel, refusals
from cedos.host.steer.mptcp.connections import MptcpConnections
from cedos.host.steer.routing_rules import Routing
from cedos.kernel.sock_diag import ConnectingSocket
from cedos.logs import get_logger
from cedos.model import Address, FlowKey, Network

_log = get_logger(__name__)

# MPTCP takes so many repeated first packets for a sign that a middlebox removes its option, goes
# on in plain TCP and, if that works, does without MPTCP for an hour. Packets that are repeated every
# quarter of a second (the first four times; net.ipv4.tcp_syn_linear_timeouts) must not look so sooner
# than ones that are repeated every second: six of them take 2.75 s, where two took 3 s.
_FALLBACK_AFTER: Final = 6


class Rescues:
    """The rescued flows. The caller keeps `networks` (by name) up to date.

    `connections` are told which network carries a rescued subflow.
    """

    def __init__(
        self,
        kernel: SteeringKernel,
        routing: Routing,
        connections: MptcpConnections,
        networks: Mapping[str, Network],
        append: Append,
    ) -> None:
        self._kernel = kernel
        self._routing = routing
        self._connections = connections
        self._networks = networks
        self._append = append
        self._early = False
        self._ready = False

    @property
    def ready(self) -> bool:
        """Return whether flows can be rescued."""
        return self._ready

    def begin(self) -> None:
        """Put in what rescues need; HostError where this host cannot do it."""
        self._append(RESCUE)
        try:
            self._kernel.rescue.prepare()
        except OSError as error:
            raise HostError(
                f"the packet filter cannot translate flows ({error.strerror}; it needs iptables"
                " with NAT and ipset in the kernel), so first packets into a dead network are lost"
            ) from error
        self._ready = True

    def repeat_early(self) -> None:
        """Let `set_first_timeouts` work; HostError where this host cannot do it, or we may not."""
        try:
            self._kernel.rescue.repeat_early()
            self._early = True
        except (OSError, HostError) as error:
            why = "CAP_BPF is missing" if isinstance(error, PermissionError) else str(error)
            raise HostError(
                f"no BPF program can be attached to the sockets here ({why}), so first packets are"
                " repeated, and rescued, after 1 s instead of 0.25 s"
            ) from error

    def set_first_timeouts(self, timeouts_s: Mapping[str, float]) -> bool:
        """Have unanswered first packets repeated after so many seconds, by network.

        Those of other networks are repeated after a second, as the kernel does it by itself. False
        where that cannot be done here; SteeringError where the kernel refuses.
        """
        if not self._early:
            return False
        by_address: dict[Address, float] = {}
        for name, timeout_s in timeouts_s.items():
            if (network := self._networks.get(name)) is not None and network.up:
                by_address |= dict.fromkeys((each.ip for each in network.addresses), timeout_s)
        with refusals("repeat first packets early"):
            if by_address:
                self._be_patient()
            self._kernel.rescue.set_first_timeouts(by_address)
        return True

    def connecting(self, key: FlowKey) -> ConnectingSocket | None:
        """Return the flow's socket if it still waits for its first answer. Errors: SteeringError."""
        if not self._ready:
            return None
        with refusals("look at a socket"):
            return self._kernel.rescue.connecting(key)

    def rescue(self, key: FlowKey, network_name: str) -> bool:
        """Lead a flow that still waits for its first answer over a network, for its life.

        It takes less than a millisecond and does not wait: the kernel may repeat the packet any
        moment. `ended` is to be called when the flow has ended. False where it has been answered
        meanwhile, or where another route than a default one leads there (a VPN, a local network).
        SteeringError: no such network, one that is down, or the kernel refuses.
        """
        if not self._ready:
            return False
        network = self._networks.get(network_name)
        if network is None or not network.up:
            raise SteeringError(f"the network {network_name} is not {'up' if network else 'there'}")
        own = any(each.ip == key.local for each in network.addresses)
        with refusals(f"rescue {key.remote}"):
            if not self._connections.by_default(key.remote, key.local):
                return False
            return self._lead(key, None if own else network_name)

    def remove(self, key: FlowKey) -> None:
        """Remove what a rescued flow left once it has ended or needs no rescue. SteeringError."""
        if not self._ready:
            return
        with refusals(f"forget the rescue of {key.remote}"):
            if self._routing.rescues.get(key) is not None:
                self._routing.set_rescue(key, None)
            self._kernel.rescue.release(key)
            self._connections.on_rescue(key, None)

    def _lead(self, key: FlowKey, name: str | None) -> bool:
        """Lead a flow that waits for its first answer over a network; None: over its own again.

        Returns:
            Whether it is led there: not if it has been answered meanwhile.
        """
        rescue = self._kernel.rescue
        rescue.adopt(key)
        # From here on nothing can come from where it was: what it is now it stays.
        if rescue.connecting(key) is not None:
            self._routing.set_rescue(key, name)
            if name is None:
                rescue.release(key)
            rescue.forget(key)
            # Save for an answer that was past the filter, but not yet with the socket.
            if rescue.connecting(key) is not None:
                self._connections.on_rescue(key, name)
                return True
        self.remove(key)
        return False

    def _be_patient(self) -> None:
        """Keep MPTCP from giving up where first packets are repeated early."""
        before = self._kernel.read_sysctl(MPTCP_FALLBACK)
        if before is not None and before.isdecimal() and int(before) < _FALLBACK_AFTER:
            change_sysctl(self._kernel, self._append, MPTCP_FALLBACK, str(_FALLBACK_AFTER))

    def close(self) -> None:
        """Give first packets the kernel's own time-out again; the journal undoes the rest."""
        self._ready = False
        if self._early:
            self._early = False
            self._kernel.rescue.repeat_as_usual()
