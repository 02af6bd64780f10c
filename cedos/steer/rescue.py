"""Rescues first packets from dead networks.

A flow whose socket still waits for its first answer is led over another network, for its life, and the
program notices nothing. The kernel itself sends the first packet again; what is changed is where that
goes: a rule of the flow's own leads it to the other network, connection tracking forgets that it ever
went elsewhere, and the packet filter gives it the other network's address. From the moment of the
rescue on, whatever the first network still answers is dropped, so that never two connections live.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from cedos.errors import HostError
from cedos.model import Address, FlowKey
from cedos.steer.kernel import Kernel
from cedos.steer.living import LivingConnections
from cedos.steer.parts import Append, change_sysctl
from cedos.steer.rescue_kernel import Connecting
from cedos.steer.rescue_timeout import FirstTimeouts, root_cgroup
from cedos.steer.routing import Routing
from cedos.steer.undo import RESCUE

_log = structlog.get_logger(__name__)

_MOUNTS: Final = Path("/proc/self/mounts")
# MPTCP takes so many repeated first packets for a sign that somebody on the way eats its option, goes
# on in plain TCP and, if that works, does without MPTCP for an hour. Packets that are repeated every
# quarter of a second (the first four times; net.ipv4.tcp_syn_linear_timeouts) must not look so sooner
# than ones that are repeated every second: six of them take 2.75 s, where two took 3 s.
_RETRIES, _USUAL = "net.ipv4.tcp_syn_retries", 6
_FALLBACK: Final = "net.mptcp.syn_retrans_before_tcp_fallback"
_FALLBACK_AFTER: Final = 6


class Rescues:
    """All rescued flows. Its methods raise OSError, and the journal's errors.

    Args:
        kernel: what to act on.
        routing: leads the flows.
        living: is told which network carries a rescued subflow.
        append: writes to the journal.
    """

    def __init__(
        self, kernel: Kernel, routing: Routing, living: LivingConnections, append: Append
    ) -> None:
        self._kernel = kernel
        self._routing = routing
        self._living = living
        self._append = append
        self._timeouts: FirstTimeouts | None = None
        self._ready = False

    def begin(self) -> None:
        """Puts in what rescues need.

        Raises:
            HostError: this host cannot do it.
        """
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
        """Lets the time-out of first packets be set (`set_timeouts`).

        Raises:
            HostError: this host cannot do it, or this process may not.
        """
        try:
            self._timeouts = FirstTimeouts(
                root_cgroup(_MOUNTS.read_text()), int(self._kernel.read_sysctl(_RETRIES) or _USUAL)
            )
        except (OSError, HostError) as error:
            why = "CAP_BPF is missing" if isinstance(error, PermissionError) else str(error)
            raise HostError(
                f"no BPF program can be attached to the sockets here ({why}), so first packets are"
                " repeated, and rescued, after a second and not after a quarter of one"
            ) from error

    @property
    def early(self) -> bool:
        """Whether `set_timeouts` has an effect."""
        return self._timeouts is not None

    def set_timeouts(self, timeouts_s: Mapping[Address, float]) -> None:
        """After how many seconds first packets are repeated, by local address; others: after one."""
        if self._timeouts is None:
            return
        if timeouts_s:
            before = self._kernel.read_sysctl(_FALLBACK)
            if before is not None and before.isdecimal() and int(before) < _FALLBACK_AFTER:
                change_sysctl(self._kernel, self._append, _FALLBACK, str(_FALLBACK_AFTER))
        self._timeouts.set(timeouts_s)

    def connecting(self, key: FlowKey) -> Connecting | None:
        """See `RescueKernel.connecting`."""
        return self._kernel.rescue.connecting(key) if self._ready else None

    def lead(self, key: FlowKey, name: str | None) -> bool:
        """Leads a flow that waits for its first answer over a network; None: over its own again.

        Returns:
            Whether it is led there: not if it has been answered meanwhile.
        """
        if not self._ready:
            return False
        hands = self._kernel.rescue
        hands.adopt(key)
        # From here on nothing can come from where it was: what it is now it stays.
        if hands.connecting(key) is not None:
            self._routing.set_rescue(key, name)
            if name is None:
                hands.release(key)
            hands.forget(key)
            # Save for an answer that was past the filter, but not yet with the socket.
            if hands.connecting(key) is not None:
                self._living.rescued(key, name)
                return True
        self.ended(key)
        return False

    def ended(self, key: FlowKey) -> None:
        """A flow is no more, or needs no rescue: nothing of it stays."""
        hands = self._kernel.rescue
        if self._routing.rescues.get(key) is not None:
            self._routing.set_rescue(key, None)
        hands.release(key)
        self._living.rescued(key, None)

    def close(self) -> None:
        """First packets have the kernel's own time-out again; the rest is the journal's."""
        if self._timeouts is not None:
            self._timeouts.close()
            self._timeouts = None
