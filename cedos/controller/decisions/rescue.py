"""Watches first packets, and has those rescued that find no answer.

A new flow comes as an event. Shortly before the kernel repeats its first packet, its socket is asked
whether it still waits, and if it does, and another network lives, the repetition goes there. How long
is waited follows the network's round trip, so that a slow network is not taken for a dead one: 250 ms
or three round trips, whichever is more, and the kernel's own second where no round trip is known.

The first repetition on a network stays there if the network carries: if other flows were answered, or if
the interface received some full packets since the packet went. Such a packet waits in a queue; led over
another network, it may meet a slower one.
"""

import heapq
import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cedos.controller.commands import EndRescue, LookAtFirstPacket, RescueFlow, SetFirstTimeouts
from cedos.controller.events import FirstPacketSeen
from cedos.controller.outbox import Outbox
from cedos.model import LAST_RULED_PORT, Address, Context, FlowKey, Network, owners
from cedos.selector.decision.liveness import dead_networks

# The earliest time for a rescue, or for a repeated first packet.
LEAST_S: Final = 0.25

# The kernel's own time-out for a first packet (RFC 6298, 2.1).
KERNEL_S: Final = 1.0

_ROUND_TRIPS: Final = 3.0
_MOST_S: Final = 3.0
# Steps per doubling (4 % each) to which a time-out is rounded. Each new time-out costs a system
# call.
_STEPS: Final = 16
# A network's round trip is the larger of the present one and the usual one in this time.
_REMEMBERED_S: Final = 10.0
# The daemon looks this long before the repetition: as late as possible, but in time to act.
_AHEAD_S: Final = 0.04
# The longest delay of the news of an opening (`flow_source`), and of the event loop.
_TOLD_LATE_S: Final = 0.03
# The daemon looks again this long after a repetition, when the kernel's next time is known.
_AFTERWARDS_S: Final = 0.02
# A network that delivered this much since a packet left is alive. Fewer bytes may be the router's
# own.
_CARRIED_BYTES: Final = 15_000
# The most flows that are watched, and those that are rescued at once: of all users, and of each. More are
# a scan, or the host is out of order. The kernel asks all rules of rescued flows for each route.
_MOST_WATCHED, _MOST_WATCHED_OF_ONE = 2_000, 512
_MOST_RESCUED, _MOST_RESCUED_OF_ONE = 512, 256
# The most flows that are looked at in one turn of the event loop: each look asks the kernel.
_MOST_LOOKS: Final = 32


@dataclass(slots=True)
class _WatchedFlow:
    """A flow without an answer.

    Attributes:
        network, own: what has its first packet, and what its address belongs to.
        sent_at_s: when the packet went there first.
        patience_s: how long it may be without an answer.
        resent: how often the kernel had repeated it before it went there.
        received_bytes: of the network, halfway through its patience (what was on its way when the
            packet went has come by then); None before.
        pending: the rescue that was asked for: the network, when, and how often the kernel has repeated
            the packet once it went there.
        user: the owner of its socket, once it was looked at.
    """

    network: str
    own: str
    sent_at_s: float
    patience_s: float
    resent: int = 0
    received_bytes: int | None = None
    pending: tuple[str, float, int] | None = None
    user: int | None = None


class Rescuer:
    """Watches the flows that begin.

    Args:
        dry_run: a rescue is only printed, so each is tried once.
        may_use: whether a flow may go over a network, by the user's rules.
        heard_at_s: when other flows last heard of something beyond a network.

    Attributes:
        living: the rescued flows that live -> the network that carries each.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        dry_run: bool = False,
        may_use: Callable[[FlowKey, str], bool] = lambda *_: True,
        heard_at_s: Callable[[str], float] = lambda _: -math.inf,
    ) -> None:
        self._outbox = outbox
        self._may_use = may_use
        self._heard_at_s = heard_at_s
        self._dry_run = dry_run
        self._networks: dict[str, Network] = {}
        self._owners: dict[Address, str] = {}
        self._rtts: dict[str, deque[tuple[float, float]]] = {}
        self._timeouts_s: dict[str, float] = {}
        self._early = False
        self._watched: dict[FlowKey, _WatchedFlow] = {}
        # By user: the watched flows that were looked at.
        self._watched_of: dict[int, int] = {}
        # The flows that are rescued, or soon may be, with their users.
        self._rescued: dict[FlowKey, int] = {}
        self._due: list[tuple[float, int, FlowKey]] = []
        self._count = 0
        self.living: dict[FlowKey, str] = {}

    # -- facts --------------------------------------------------------------------------------

    def networks_changed(self, networks: Sequence[Network], context: Context) -> None:
        """Take the networks that flows may use."""
        self._networks = {network.name: network for network in networks}
        self._owners = {ip: network.name for ip, (network, _) in owners(networks).items()}
        self._timeouts_s = {}  # addresses may have changed: all are set again
        self.context_changed(context)

    def context_changed(self, context: Context) -> None:
        """Take what is known of the networks; the time-outs of first packets follow."""
        wanted = {}
        for name, network in self._networks.items():
            rtt_s = self._rtt_s(name, context)
            if network.up and rtt_s is not None:
                exact = min(max(LEAST_S, _ROUND_TRIPS * rtt_s), _MOST_S)
                wanted[name] = LEAST_S * 2 ** (
                    math.ceil(_STEPS * math.log2(exact / LEAST_S)) / _STEPS
                )
        if wanted != self._timeouts_s:
            self._timeouts_s = wanted
            self._outbox.give(SetFirstTimeouts(wanted))

    def on_timeouts_set(self, early: bool) -> None:
        """Note whether first packets are repeated early, as asked."""
        self._early = early

    def on_timeouts_failed(self) -> None:
        """Take it that no time-out is set: the next look sets them again."""
        self._timeouts_s = {}

    def _rtt_s(self, name: str, context: Context) -> float | None:
        known = self._rtts.setdefault(name, deque())
        now = context.networks.get(name, {}).get("rtt_s")
        if now is not None and (not known or known[-1][0] < now.measured_at_s):
            known.append((now.measured_at_s, now.value))
        # The newest stays, however old.
        while len(known) > 1 and known[0][0] < context.at_s - _REMEMBERED_S:
            known.popleft()
        if not known:
            return None
        # A single late answer does not make a network slow for long.
        return max(known[-1][1], statistics.median(rtt_s for _, rtt_s in known))

    def on_open(self, key: FlowKey, at_s: float) -> None:
        own = self._owners.get(key.local)
        if own is None or key.protocol != "tcp" or len(self._watched) >= _MOST_WATCHED:
            return
        if max(key.local_port, key.remote_port) > LAST_RULED_PORT:
            return
        patience_s = self._patience_s(own)
        self._watched[key] = _WatchedFlow(own, own, at_s, patience_s)
        # The first look, halfway, reads only what the network has received until then.
        self._check_at(at_s + patience_s / 2, key)

    def on_close(self, key: FlowKey) -> None:
        if self.living.pop(key, None) is not None:
            self._outbox.give(EndRescue(key))
        self._forget(key)

    def _forget(self, key: FlowKey) -> None:
        """Watch a flow no more. It counts as rescued as long as it lives so."""
        watched = self._watched.pop(key, None)
        if watched is not None and watched.user is not None:
            self._watched_of[watched.user] -= 1
            if not self._watched_of[watched.user]:
                del self._watched_of[watched.user]
        if key not in self.living:
            self._rescued.pop(key, None)

    # -- checking -----------------------------------------------------------------------------

    def _patience_s(self, network: str) -> float:
        rtt_s = self._timeouts_s.get(network, KERNEL_S)
        return rtt_s if self._early else max(rtt_s, KERNEL_S)

    def _check_at(self, at_s: float, key: FlowKey) -> None:
        self._count += 1
        heapq.heappush(self._due, (at_s, self._count, key))

    def next_timer_s(self) -> float | None:
        """Return when the next flow is due; flows that were answered or ended meanwhile are left out."""
        while self._due and self._due[0][2] not in self._watched:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def on_timer(self, now_s: float) -> None:
        """Ask for a look at the flows that are due; at what is left in the next turn."""
        for _ in range(_MOST_LOOKS):
            if (at_s := self.next_timer_s()) is None or at_s > now_s:
                return
            _, _, key = heapq.heappop(self._due)
            self._outbox.give(LookAtFirstPacket(key))

    def on_answer(self, key: FlowKey) -> None:
        """Watch a flow no more: it was answered or closed, or is a further subflow of MPTCP."""
        self._forget(key)

    def on_look(self, seen: FirstPacketSeen, context: Context, now_s: float) -> None:
        """Take a look at a flow whose first packet has no answer; rescue it if that is due."""
        key = seen.key
        watched = self._watched.get(key)
        if watched is None or not self._is_watched_for(seen, watched):
            return
        known = self._networks.get(watched.network)
        received = seen.received_bytes.get(known.interface, 0) if known is not None else 0
        # The first look, halfway, only notes what the network has received until then.
        if watched.received_bytes is None:
            watched.received_bytes = received
            if not watched.resent:
                due_s = watched.sent_at_s + watched.patience_s - _AHEAD_S - _TOLD_LATE_S
                self._check_at(due_s, key)
                return
        # Act just before the kernel sends the packet again: the repetition leaves over the other network.
        left_s = seen.resend_in_s
        if left_s > _AHEAD_S + 0.01:
            self._check_at(now_s + left_s - _AHEAD_S, key)
            return
        self._check_at(now_s + left_s + _AFTERWARDS_S, key)
        if now_s < watched.sent_at_s + watched.patience_s - 2 * _AHEAD_S:
            return
        # Where the network carries, the packet waits in a queue or was lost there, and the kernel's own
        # repetition costs nothing.
        if seen.resent <= watched.resent and self._carries(watched, received, context):
            return
        if not self._may_rescue(key, seen.user):
            return
        other = self._best_other(key, watched.network, context, any_of_them=seen.resent > 0)
        if other is not None:
            self._rescued[key] = seen.user
            watched.pending = other, now_s, seen.resent + 1
            waited_s = now_s - watched.sent_at_s
            why = (
                f"no reply to its first packet over {watched.network} for {waited_s * 1e3:.0f} ms."
                f" It was sent again over {other}"
            )
            self._outbox.give(RescueFlow(key, other, why))

    def _is_watched_for(self, seen: FirstPacketSeen, watched: _WatchedFlow) -> bool:
        """Count a flow as its user's at the first look, and watch it no more where these are too many."""
        if watched.user is None:
            before = self._watched_of.get(seen.user, 0)
            if before >= _MOST_WATCHED_OF_ONE:
                self._forget(seen.key)
                return False
            watched.user, self._watched_of[seen.user] = seen.user, before + 1
        return True

    def _may_rescue(self, key: FlowKey, user: int) -> bool:
        if key in self._rescued:
            return True
        own = sum(each == user for each in self._rescued.values())
        return len(self._rescued) < _MOST_RESCUED and own < _MOST_RESCUED_OF_ONE

    def _carries(self, watched: _WatchedFlow, received_bytes: int, context: Context) -> bool:
        """Return whether the network answered others, or delivered much, since the packet went."""
        before = watched.received_bytes
        if before is not None and received_bytes - before >= _CARRIED_BYTES:
            return True
        rtt = context.networks.get(watched.network, {}).get("rtt_s")
        if rtt is not None and rtt.measured_at_s > watched.sent_at_s:
            return True
        # What was on its way when the packet went says nothing.
        under_way_s = rtt.value if rtt is not None else 0.0
        return self._heard_at_s(watched.network) > watched.sent_at_s + under_way_s

    def on_rescue(self, key: FlowKey) -> None:
        """Note that a flow was led elsewhere."""
        watched = self._watched.get(key)
        if watched is None or watched.pending is None:
            return
        other, at_s, resent = watched.pending
        watched.network, watched.sent_at_s, watched.pending = other, at_s, None
        watched.patience_s = self._patience_s(other)
        watched.resent, watched.received_bytes = resent, None
        if other == watched.own:
            self.living.pop(key, None)
        else:
            self.living[key] = other
        if self._dry_run:
            self._forget(key)

    def _best_other(
        self, key: FlowKey, current: str, context: Context, *, any_of_them: bool
    ) -> str | None:
        """Return the best other network that lives: one that answered of late, unmetered, quick.

        With `any_of_them` a dead one may try too where none lives: it may do so again by now.
        """
        dead = dead_networks(context, self._networks.values())
        version = key.local.version
        candidates = []
        for name, network in self._networks.items():
            if name == current or not network.up or (name in dead and not any_of_them):
                continue
            # The user's rules, and a way out of the flow's IP version.
            if not self._may_use(key, name):
                continue
            if not network.leads_out(version):
                continue
            # Prefer a living network, then a recent answer, then an unmetered and a quick one.
            rtt = context.networks.get(name, {}).get("rtt_s")
            fresh = rtt is not None and context.at_s - rtt.measured_at_s < _REMEMBERED_S
            rtt_s = rtt.value if rtt is not None else math.inf
            candidates.append((name in dead, not fresh, network.metered, rtt_s, name))
        return min(candidates)[-1] if candidates else None
