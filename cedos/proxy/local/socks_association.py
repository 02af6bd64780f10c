"""A program's datagrams by SOCKS 5 (RFC 1928, section 7)."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cedos.proxy.local.program_packets import Came, ProgramPackets
from cedos.proxy.local.socks import SocksPacket, SocksReply, parse_packet, reply

_AT_ONCE: Final = 64
_LARGEST: Final = 65_535


class SocksAssociation:
    """Lives as long as the program's connection does (`serve`).

    Args:
        program: the connection by which it was asked for.
        port: that the program says it will send from, 0: it does not say.
        packets: makes what carries its packets, and calls with the answers.
    """

    def __init__(
        self,
        program: socket.socket,
        port: int,
        packets: Callable[[Came], ProgramPackets],
    ) -> None:
        self._program, self._port = program, port
        self._loop = asyncio.get_running_loop()
        self._peer: tuple[str, int] | None = None
        self._packets = packets(self._came)

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
                await self._packets.end()

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
                self._packets.send(packet.host, packet.port, packet.data)

    def _is_program(self, sender: tuple[str, int]) -> bool:
        if self._peer is None and self._port in (0, sender[1]):
            self._peer = sender
        return sender == self._peer

    def _came(self, host: str, port: int, data: bytes) -> None:
        if self._peer is not None:
            with suppress(OSError, ValueError):  # it does not read, or is gone; no address
                self._near.sendto(SocksPacket(host, port, data).pack(), self._peer)


def _plain(host: str) -> str:
    return host.partition("%")[0]
