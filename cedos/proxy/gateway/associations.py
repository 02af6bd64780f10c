"""The gateway's associations: how many there may be, for whom, and when they end."""

import asyncio
from collections import Counter
from functools import partial
from http import HTTPStatus
from typing import Final

import structlog

from cedos.proxy.gateway.origin import Origins
from cedos.proxy.gateway.packet_relay import IDLE_S, PacketRelay, RememberedPeers
from cedos.proxy.http import RefusedError
from cedos.proxy.streams.association import ProxiedAssociation
from cedos.proxy.streams.frames import ProgramPacket

MOST: Final = 4_096
MOST_PER_CLIENT: Final = 512
_CHECK_S: Final = 15.0

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger(__name__)


class Associations:
    """The associations of all clients, until `close`."""

    def __init__(
        self,
        origins: Origins,
        *,
        most: int = MOST,
        most_per_client: int = MOST_PER_CLIENT,
        idle_s: float = IDLE_S,
    ) -> None:
        self._origins = origins
        self._most, self._most_per_client, self._idle_s = most, most_per_client, idle_s
        self._remembered = RememberedPeers()
        self._relays: dict[ProxiedAssociation, PacketRelay] = {}
        self._per_client: Counter[bytes] = Counter()
        self._checking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._relays)

    def open(self, client: bytes, association: ProxiedAssociation) -> None:
        """Accept a client's association. RefusedError: there are too many."""
        full = len(self._relays) >= self._most
        if full or self._per_client[client] >= self._most_per_client:
            most = self._most if full else self._most_per_client
            whose = "the gateway takes" if full else "one client may have"
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "connection_limit_reached",
                f"{most} associations are all that {whose}",
            )
        # Connect both ends: packets of the client go to the relay, answers come back to the client.
        relay = PacketRelay(
            partial(self._origins.addresses, asker=client),
            association.send,
            association.tell_undelivered,
            self._remembered.share(client),
        )
        self._relays[association] = relay
        self._per_client[client] += 1
        association.received = partial(_sent_on, relay)
        association.ended = lambda: self._over(client, association)
        association.accept()
        self._check_later()

    def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
        for relay in self._relays.values():
            relay.close()
        self._relays.clear()

    def _over(self, client: bytes, association: ProxiedAssociation) -> None:
        relay = self._relays.pop(association, None)
        if relay is None:
            return
        relay.close()
        self._per_client[client] -= 1
        if not self._per_client[client]:
            del self._per_client[client]
        _log.debug("association over", refused=relay.refused, strangers=relay.strangers)

    def _check_later(self) -> None:
        if self._checking is None:
            loop = asyncio.get_running_loop()
            self._checking = loop.call_later(min(_CHECK_S, self._idle_s), self._check)

    def _check(self) -> None:
        self._checking = None
        old_s = asyncio.get_running_loop().time() - self._idle_s
        for association, relay in list(self._relays.items()):
            if relay.used_s <= old_s:
                association.reset()
        if self._relays:
            self._check_later()


def _sent_on(relay: PacketRelay, packet: ProgramPacket) -> None:
    relay.send(packet.host, packet.port, packet.data)
