"""A program's datagrams by SOCKS 5 (RFC 1928, section 7): through the gateway, or direct."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from cedos.proxy.answers import RefusedError
from cedos.proxy.gateway.packet_relay import PacketRelay, Permitted
from cedos.proxy.local.gateway_link import AGAIN_S, GatewayLink, GatewayUnreachableError
from cedos.proxy.local.socks import SocksPacket, SocksReply, parse_packet, reply
from cedos.proxy.streams.association import ProxiedAssociation
from cedos.proxy.streams.packets import ProgramPacket

_AT_ONCE: Final = 64
_LARGEST: Final = 65_535
_MOST_WAITING: Final = 64
_MOST_KNOWN: Final = 1_024
_KNOWN_S: Final = 5.0

_log = structlog.get_logger(__name__)


class SocksAssociation:
    """Lives as long as the program's connection does (`serve`).

    Args:
        program: the connection by which it was asked for.
        port: that the program says it will send from, 0: it does not say.
        goes_direct: whether a host is of this place.
        permitted: where direct packets may go; None: nowhere while the gateway is out of reach.
        everywhere: over all networks at once.
    """

    def __init__(
        self,
        program: socket.socket,
        port: int,
        link: GatewayLink,
        goes_direct: Callable[[str], bool],
        permitted: Permitted,
        *,
        fails_open: bool,
        everywhere: bool,
    ) -> None:
        self._program, self._port, self._link = program, port, link
        self._goes_direct, self._fails_open, self._everywhere = goes_direct, fails_open, everywhere
        self._loop = asyncio.get_running_loop()
        self._peer: tuple[str, int] | None = None
        self._known: OrderedDict[str, tuple[bool, float]] = OrderedDict()
        self._direct = PacketRelay(permitted, self._came)
        self._association: ProxiedAssociation | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: list[SocksPacket] = []
        self._not_before_s = 0.0

    async def serve(self) -> None:
        """Until the program hangs up. OSError: there is no more room for a socket."""
        loop, program = self._loop, self._program
        own, peer = program.getsockname()[0], program.getpeername()[0]
        with socket.socket(program.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as near:
            near.bind((own, 0))
            loop.add_reader(near, self._readable, near, peer)
            self._near = near
            try:
                await loop.sock_sendall(
                    program, reply(SocksReply.SUCCEEDED, (_plain(own), near.getsockname()[1]))
                )
                while await loop.sock_recv(program, 1024):
                    pass
            finally:
                loop.remove_reader(near)
                await self._end()

    async def _end(self) -> None:
        self._direct.close()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._association is not None:
            self._association.ended = lambda: None
            self._association.reset()

    def _readable(self, near: socket.socket, host: str) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, sender = near.recvfrom(_LARGEST)
            except OSError:
                return
            if sender[0] != host or not self._is_program(sender[:2]):
                continue  # only who asked for it sends here
            packet = parse_packet(data)
            if packet is not None:
                self._send(packet)

    def _is_program(self, sender: tuple[str, int]) -> bool:
        if self._peer is None and self._port in (0, sender[1]):
            self._peer = sender
        return sender == self._peer

    def _send(self, packet: SocksPacket) -> None:
        if self._is_near(packet.host):
            self._direct.send(packet.host, packet.port, packet.data)
        elif self._association is not None:
            self._association.send(packet.host, packet.port, packet.data)
        elif self._loop.time() < self._not_before_s:
            if self._fails_open:
                self._direct.send(packet.host, packet.port, packet.data)
        else:
            if len(self._waiting) < _MOST_WAITING:
                self._waiting.append(packet)
            if self._opening is None:
                self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            association = await self._link.associate(everywhere=self._everywhere)
        except (GatewayUnreachableError, RefusedError) as error:
            _log.debug("no association", why=str(error))
            self._not_before_s = self._loop.time() + AGAIN_S
        else:
            association.received = self._received
            association.ended = self._over
            self._association = None if association.over else association
        finally:
            self._opening = None
        waiting, self._waiting = self._waiting, []
        for packet in waiting:
            self._send(packet)

    def _over(self) -> None:
        """The next packet asks for another one."""
        self._association = None

    def _received(self, packet: ProgramPacket) -> None:
        self._came(packet.host, packet.port, packet.data)

    def _came(self, host: str, port: int, data: bytes) -> None:
        if self._peer is not None:
            with suppress(OSError, ValueError):  # it does not read, or is gone; no address
                self._near.sendto(SocksPacket(host, port, data).pack(), self._peer)

    def _is_near(self, host: str) -> bool:
        now = self._loop.time()
        known = self._known.get(host)
        if known is None or known[1] < now:
            known = self._known[host] = self._goes_direct(host), now + _KNOWN_S
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return known[0]


def _plain(host: str) -> str:
    return host.partition("%")[0]
