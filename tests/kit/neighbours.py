"""Neighbours on one link: their machines, a link that delivers, and drivers that do as they are told."""

import math
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import cycle
from random import Random as Pseudo

from cedos.apps.sharing.protocol.certificates import (
    CertificateAuthority,
    HostIdentity,
    Trust,
    request_certificate,
)
from cedos.apps.sharing.protocol.commands import (
    AddPath,
    HelperCommand,
    LinkAddress,
    RequestorCommand,
    SendDatagram,
    StartForwarding,
    TakeAddress,
)
from cedos.apps.sharing.protocol.helper import HelperMachine, HelperTerms, Uplink
from cedos.apps.sharing.protocol.messages import Endpoint
from cedos.apps.sharing.protocol.requestor import RequestorMachine, RequestorWish
from cedos.apps.sharing.protocol.signing import SigningKey
from cedos.selector.sharing import NetworkType

START_S = 1_800_000_000.0
GATEWAY = SigningKey(b"g" * 32)
REACHES = Endpoint(bytes([198, 51, 100, 1]), 443)


def key_of(name: str) -> SigningKey:
    return SigningKey(sha256(name.encode()).digest())


def identity(
    name: str, *, gateway: SigningKey = GATEWAY, now_s: float = START_S, client: str = ""
) -> HostIdentity:
    """Return a host that the gateway has registered; `client`: one that may have several names."""
    key = key_of(name)
    session = sha256(client.encode() or key.public).digest()
    wish = request_certificate(key, session, name, gateway.public, now_s)
    serial = int.from_bytes(name.encode()[:6], "big")
    return HostIdentity(key, CertificateAuthority(gateway).issue(wish, session, serial, now_s))


class Everyone:
    """The public keys of all clients that there may be, which all are invited."""

    def __contains__(self, _key: object) -> bool:
        return True


def trust() -> Trust:
    return Trust(GATEWAY.public)


def random_of(name: str) -> Callable[[int], bytes]:
    return Pseudo(name).randbytes


def uplink(number: int, rate_bps: int | None = 4_000_000, battery: float | None = None) -> Uplink:
    return Uplink(
        NetworkType.LTE, bytes([10, 0, 0, number]), REACHES, rate_bps=rate_bps, battery=battery
    )


def requestor(name: str = "ann", seed: str = "", **wish: object) -> RequestorMachine:
    wanted = RequestorWish(**{"rate_bps": 8_000_000, **wish})
    return RequestorMachine(
        identity(name), trust(), wanted, random=random_of(seed or name), now_s=START_S
    )


def helper(name: str, number: int, price: int = 500_000, **terms: object) -> HelperMachine:
    sold = HelperTerms(**{"price": price, "limit_bytes": 500_000_000, **terms})
    made = HelperMachine(identity(name), trust(), sold, random=random_of(name), now_s=START_S)
    made.on_uplink(uplink(number), START_S)
    return made


class Link:
    """A link with one requestor and several helpers; `now` moves by hand.

    Its drivers obey each command at once, and keep what they were told. `lose` says of a datagram
    whether the link loses it.
    """

    def __init__(self, asker: RequestorMachine, helpers: dict[str, HelperMachine]) -> None:
        self.asker, self.helpers = asker, helpers
        self.now = START_S
        self.asked: list[RequestorCommand] = []
        self.told: list[tuple[str, HelperCommand]] = []
        self.sent: list[tuple[str, bytes]] = []
        self.lose: Callable[[str, bytes], bool] = lambda sender, data: False
        self.addresses: Iterator[int] = cycle(range(100, 250))

    def address(self, name: str) -> LinkAddress:
        return (name, 7, 1)

    def settle(self) -> None:
        """Deliver until all is said."""
        busy = True
        while busy:
            busy = False
            for command in self.asker.commands():
                busy = True
                self.asked.append(command)
                if isinstance(command, SendDatagram):
                    self._from_asker(command)
                elif isinstance(command, TakeAddress):
                    free = bytes([10, 0, 0, next(self.addresses)])
                    self.asker.on_address(command.helper, free, self.now)
            for name, machine in self.helpers.items():
                for told in machine.commands():
                    busy = True
                    self.told.append((name, told))
                    if isinstance(told, SendDatagram):
                        self._from_helper(name, told)
                    elif isinstance(told, StartForwarding):
                        machine.on_forwarding(told.requestor, self.now)

    def _from_asker(self, command: SendDatagram) -> None:
        self.sent.append(("asker", command.data))
        for name, machine in self.helpers.items():
            here = command.to is None or command.to == self.address(name)
            if here and not self.lose("asker", command.data):
                machine.receive_datagram(command.data, self.address("asker"), self.now)

    def _from_helper(self, name: str, command: SendDatagram) -> None:
        self.sent.append((name, command.data))
        if command.to == self.address("asker") and not self.lose(name, command.data):
            self.asker.receive_datagram(command.data, self.address(name), self.now)

    def run(self, seconds: float) -> None:
        """Let the time pass, from timer to timer."""
        self.settle()
        end = self.now + seconds
        while True:
            timers = [
                each.next_timer() or math.inf for each in (self.asker, *self.helpers.values())
            ]
            if min(timers) > end:
                break
            self.now = max(self.now, min(timers))
            self.asker.handle_timer(self.now)
            for machine in self.helpers.values():
                machine.handle_timer(self.now)
            self.settle()
        self.now = end

    def paths(self) -> list[str]:
        """Return the names of the helpers whose paths were added, in order."""
        return [each.name for each in self.asked if isinstance(each, AddPath)]
