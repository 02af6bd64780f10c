"""Watches first packets, and has those rescued that find no answer.

A new flow comes as an event. Shortly before the kernel repeats its first packet, its socket is asked
whether it still waits, and if it does, and another network lives, the repetition goes there. How long
is waited follows the network's round trip, so that a slow network is not taken for a dead one: 250 ms
or three round trips, whichever is more, and the kernel's own second where no round trip is known.

The first repetition on a network stays there if the network carries: if other flows were answered, or if
the interface received some full packets since the packet went. Such a packet waits in a queue; led over
another network, it may meet a slower one.
"""

import asyncio
import heapq
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from cedos.api.messages import flow_text
from cedos.errors import CedosError
from cedos.kernel.sock_diag import ConnectingSocket
from cedos.model import Address, Context, FlowKey, Network
from cedos.selector.decision.liveness import dead_networks

_log = structlog.get_logger(__name__)

LEAST_S: Final = 0.25
"""Seconds before which no flow is rescued and no first packet is repeated."""

KERNEL_S: Final = 1.0
"""The kernel's own time-out for a first packet (RFC 6298, 2.1)."""

_ROUND_TRIPS: Final = 3.0
_MOST_S: Final = 3.0
# In steps of 4 %: each new time-out is a call of the kernel.
_STEPS: Final = 16
# A network is taken to be as slow as it is, or as it mostly was in the last moments.
_REMEMBERED_S: Final = 10.0
# So long before the repetition is looked and acted: as late as possible, but never too late.
_AHEAD_S: Final = 0.04
# An opening is told by so much late at most (`flow_source`), and so may be the event loop.
_TOLD_LATE_S: Final = 0.03
# After a repetition went out, the next one's time is known.
_AFTERWARDS_S: Final = 0.02
# A network that delivered so much since a packet went is alive. Rarer packets may be a router's own.
_CARRIED_BYTES: Final = 15_000
# The counters are read at most so often, whatever begins.
_READ_EVERY_S: Final = 0.02
# More than so many are not watched: they are a scan, or the host is out of order.
_MOST_WATCHED: Final = 10_000


class RescueInterface(Protocol):
    """The interface of `cedos.steer.rescue.rescues.Rescues`. Errors: SteeringError."""

    def set_first_timeouts(self, timeouts_s: dict[str, float]) -> bool:
        """Have first packets repeated after so long, by network; return whether that can be done."""

    def connecting(self, key: FlowKey) -> ConnectingSocket | None:
        """Return the flow's socket while it waits for its first answer."""

    def rescue(self, key: FlowKey, network_name: str) -> bool:
        """Lead a flow over a network; return whether it was still time."""

    def remove(self, key: FlowKey) -> None: ...


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
    """

    network: str
    own: str
    sent_at_s: float
    patience_s: float
    resent: int = 0
    received_bytes: int | None = None


class Rescuer:
    """Watches the flows that begin.

    Args:
        rescued: told of each rescue: the flow, its new network, the reason in words.
        dry_run: a rescue is only printed, so each is tried once.
        may_use: whether a flow may go over a network, by the user's rules.
        heard_at_s: when other flows last heard of something beyond a network.
        received_bytes: the counters of all interfaces now, by interface.
    """

    def __init__(
        self,
        rescues: RescueInterface,
        context: Callable[[], Context],
        rescued: Callable[[FlowKey, str, str], None],
        *,
        dry_run: bool = False,
        may_use: Callable[[FlowKey, str], bool] = lambda *_: True,
        heard_at_s: Callable[[str], float] = lambda _: -math.inf,
        received_bytes: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._may_use = may_use
        self._heard_at_s = heard_at_s
        self._read_counters = received_bytes
        self._counters: Mapping[str, int] = {}
        self._read_at_s = -math.inf
        self._rescues = rescues
        self._context = context
        self._rescued = rescued
        self._dry_run = dry_run
        self._networks: dict[str, Network] = {}
        self._owners: dict[Address, str] = {}
        self._rtts: dict[str, deque[tuple[float, float]]] = {}
        self._timeouts_s: dict[str, float] = {}
        self._early = False
        self._watched: dict[FlowKey, _WatchedFlow] = {}
        self._due: list[tuple[float, int, FlowKey]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        # What is known of the networks, once for all flows that are looked at together.
        self._known: tuple[Context, Mapping[str, str]] | None = None
        self.living: dict[FlowKey, str] = {}
        """The rescued flows that live -> the network that carries each."""

    def close(self) -> None:
        """Watch no more; what is rescued stays so."""
        if self._timer is not None:
            self._timer.cancel()
        self._watched.clear()

    # -- facts --------------------------------------------------------------------------------

    def networks_changed(self, networks: Sequence[Network]) -> None:
        self._networks = {network.name: network for network in networks}
        self._owners = {each.ip: network.name for network in networks for each in network.addresses}
        self._timeouts_s = {}  # addresses may have changed: all are set again
        self.context_changed(self._context())

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
        if wanted == self._timeouts_s:
            return
        try:
            self._early = self._rescues.set_first_timeouts(wanted)
            self._timeouts_s = wanted
        except CedosError as error:
            _log.warning("first packets cannot be repeated early", why=str(error))

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
        patience_s = self._patience_s(own)
        self._watched[key] = _WatchedFlow(own, own, at_s, patience_s)
        # The first look, halfway, reads only what the network has received until then.
        self._check_at(at_s + patience_s / 2, key)

    def on_close(self, key: FlowKey) -> None:
        self._watched.pop(key, None)
        if self.living.pop(key, None) is not None:
            try:
                self._rescues.remove(key)
            except CedosError as error:
                _log.warning(
                    "a rescue could not be taken back", flow=flow_text(key), why=str(error)
                )

    # -- checking -----------------------------------------------------------------------------

    def _patience_s(self, network: str) -> float:
        rtt_s = self._timeouts_s.get(network, KERNEL_S)
        return rtt_s if self._early else max(rtt_s, KERNEL_S)

    def _check_at(self, at_s: float, key: FlowKey) -> None:
        self._count += 1
        heapq.heappush(self._due, (at_s, self._count, key))
        if self._due[0][1] == self._count:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        delay_s = max(0.0, self._due[0][0] - time.monotonic())
        self._timer = loop.call_later(delay_s, self._check_due) if self._due else None

    def _check_due(self) -> None:
        self._timer = None
        self._known = None
        # Most flows are answered and over before they are due: the timer does not wake for those.
        while self._due and (
            (watched := self._watched.get(self._due[0][2])) is None
            or self._due[0][0] <= time.monotonic()
        ):
            _, _, key = heapq.heappop(self._due)
            if watched is None:
                continue
            try:
                again_at_s = self._consider(key, watched)
            except CedosError as error:
                _log.warning("a flow cannot be rescued", flow=flow_text(key), why=str(error))
                again_at_s = None
            if again_at_s is None:
                self._watched.pop(key, None)
            else:
                self._check_at(again_at_s, key)
        if self._due:
            self._set_timer()

    def _consider(self, key: FlowKey, watched: _WatchedFlow) -> float | None:
        """Look at one flow; when to look again, None: it needs no more."""
        if watched.received_bytes is None:
            watched.received_bytes = self._received_bytes(watched.network)
            if not watched.resent:
                return watched.sent_at_s + watched.patience_s - _AHEAD_S - _TOLD_LATE_S
        # Answered, closed, or a further subflow of MPTCP: no rescue.
        found = self._rescues.connecting(key)
        if found is None or found.join:
            return None
        now_s = time.monotonic()
        # Act just before the kernel sends the packet again: the repetition leaves over the other network.
        left_s = found.resend_in_s
        if left_s > _AHEAD_S + 0.01:
            return now_s + left_s - _AHEAD_S
        patient_until_s = watched.sent_at_s + watched.patience_s - 2 * _AHEAD_S
        patient = now_s < patient_until_s
        # Where the network carries, the packet waits in a queue or was lost there, and the kernel's own
        # repetition costs nothing.
        lost = found.resent <= watched.resent and self._carries(watched)
        other = None if patient or lost else self._other(key, watched.network, found.resent > 0)
        if other is None or not self._rescues.rescue(key, other):
            return now_s + left_s + _AFTERWARDS_S
        self._was_rescued(key, watched, other, now_s, found.resent + 1)
        return None if self._dry_run else now_s + left_s + _AFTERWARDS_S

    def _received_bytes(self, network: str) -> int:
        now_s = time.monotonic()
        if now_s - self._read_at_s > _READ_EVERY_S:
            self._counters, self._read_at_s = self._read_counters(), now_s
        known = self._networks.get(network)
        return self._counters.get(known.interface, 0) if known is not None else 0

    def _carries(self, watched: _WatchedFlow) -> bool:
        """Return whether the network answered others, or delivered much, since the packet went."""
        before = watched.received_bytes
        if before is not None:
            received = self._received_bytes(watched.network) - before
            if received >= _CARRIED_BYTES:
                return True
        rtt = self._context().networks.get(watched.network, {}).get("rtt_s")
        if rtt is not None and rtt.measured_at_s > watched.sent_at_s:
            return True
        # What was on its way when the packet went says nothing.
        under_way_s = rtt.value if rtt is not None else 0.0
        return self._heard_at_s(watched.network) > watched.sent_at_s + under_way_s

    def _was_rescued(
        self, key: FlowKey, watched: _WatchedFlow, other: str, now_s: float, resent: int
    ) -> None:
        waited_s = now_s - watched.sent_at_s
        why = (
            f"no reply to its first packet over {watched.network} for {waited_s * 1e3:.0f} ms."
            f" It was sent again over {other}"
        )
        watched.network, watched.sent_at_s = other, now_s
        watched.patience_s = self._patience_s(other)
        watched.resent, watched.received_bytes = resent, None
        if other == watched.own:
            self.living.pop(key, None)
        else:
            self.living[key] = other
        # There may be more to be rescued, and they cannot wait for this to be written down.
        asyncio.get_running_loop().call_soon(self._tell, key, other, why)

    def _tell(self, key: FlowKey, network: str, why: str) -> None:
        _log.info("rescued", flow=flow_text(key), to=network, why=why)
        self._rescued(key, network, why)

    def _other(self, key: FlowKey, current: str, any_of_them: bool) -> str | None:
        """Return the best other network that lives: one that answered of late, unmetered, quick.

        With `any_of_them` a dead one may try too where none lives: it may do so again by now.
        """
        if self._known is None:
            context = self._context()
            self._known = context, dead_networks(context, self._networks.values())
        context, dead = self._known
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
