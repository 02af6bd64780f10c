"""What anybody's unread bytes take of the host's TCP memory is seen from an emulated host."""

import socket
from collections.abc import Callable

from emu.testbed.counters import TcpMemory
from emu.testbed.netns import Namespace

_BYTES = 4_000_000
_PAGE = 4096


def test_bytes_that_nobody_reads_are_seen(make_namespace: Callable[[str], Namespace]) -> None:
    one, other = make_namespace("one"), make_namespace("two")
    with TcpMemory(one) as quiet:
        pass
    other.run("ip", "link", "set", "lo", "up")
    with other.entered(), socket.create_server(("127.0.0.1", 0)) as server:
        writer = socket.create_connection(server.getsockname())
        reader, _ = server.accept()
    with writer, reader:
        writer.setblocking(False)
        sent = 0
        try:
            while sent < _BYTES:
                sent += writer.send(bytes(65_536))
        except BlockingIOError:
            pass
        with TcpMemory(one) as full:
            pass
    assert full.most_pages - quiet.most_pages > sent / _PAGE / 2
    assert full.free_pages == quiet.free_pages > 0
