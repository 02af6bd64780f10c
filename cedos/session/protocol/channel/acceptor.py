"""The accepting host: a channel for each connection from outside, under limits. Pure."""

from cedos.session.protocol.channel.channel import Channel
from cedos.session.protocol.crypto import KeyPair, Random
from cedos.session.protocol.handshake.accepting import (
    AcceptorHandshake,
    AcceptorState,
    KnownFlows,
)
from cedos.session.protocol.handshake.limits import HalfOpen, HandshakeLimits, HostLedger

_NO_LIMITS = HandshakeLimits()


class Acceptor:
    """Makes channels, and watches those that are not confirmed yet.

    `ledger` counts what known hosts have (shared with the flow table); `allow_clear`: for those who ask.
    """

    def __init__(
        self,
        me: KeyPair,
        flows: KnownFlows,
        *,
        random: Random,
        hardware_aes: bool,
        now: float,
        allow_clear: bool = False,
        limits: HandshakeLimits = _NO_LIMITS,
        ledger: HostLedger | None = None,
    ) -> None:
        self.ledger = ledger or HostLedger(limits)
        self._limits = limits
        self._half_open: HalfOpen[Channel] = HalfOpen(limits)
        self._allow_clear = allow_clear
        self._pushed_out: list[Channel] = []
        self._reception = AcceptorState(
            me,
            flows,
            random=random,
            hardware_aes=hardware_aes,
            limits=limits,
            ledger=self.ledger,
            half_open=self._half_open,
            now=now,
        )

    def __len__(self) -> int:
        return len(self._half_open)

    def channel(
        self,
        address: str,
        now: float,
        *,
        allow_clear: bool | None = None,
    ) -> Channel:
        """For an address without its port."""
        clear = self._allow_clear if allow_clear is None else allow_clear
        accepting = AcceptorHandshake(self._reception, address, allow_clear=clear)
        channel = Channel(accepting, now + self._limits.handshake_s, done=self._half_open.done)
        pushed = self._half_open.add(channel, address, now)
        if pushed is not None:
            self._pushed_out.append(pushed)
        return channel

    def overdue(self, now: float) -> list[Channel]:
        """Those that were too slow or were pushed out by newer ones: close their connections."""
        late, self._pushed_out = self._pushed_out, []
        late += self._half_open.overdue(now)
        for channel in late:
            channel.expire()
        return late

    def next_expiry(self) -> float | None:
        return float("-inf") if self._pushed_out else self._half_open.next_expiry()
