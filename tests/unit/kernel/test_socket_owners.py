"""Owners of sockets, as the kernel tells."""

import os
import socket
import struct

from cedos.kernel.socket_owners import UNKNOWN, SocketOwner, SocketOwners


def owner(one):
    """By SO_COOKIE."""
    (cookie,) = struct.unpack("Q", one.getsockopt(socket.SOL_SOCKET, 57, 8))
    return SocketOwner(cookie, os.geteuid())


def test_the_kernel_tells_who_sends():
    owners = SocketOwners()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as program,
    ):
        accepted, _ = server.accept()
        with accepted:
            ends = accepted.getpeername(), accepted.getsockname()
            assert owners.find(socket.IPPROTO_TCP, *ends) == owner(program)
            assert owners.user_of(socket.IPPROTO_TCP, ends[0], accepted) == os.geteuid()
            other = ("127.0.0.2", ends[0][1])  # the same ports
            assert owners.find(socket.IPPROTO_TCP, other, ends[1]) != owner(program)
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as one:
        one.bind(("::1", 0))
        port = one.getsockname()[1]
        assert owners.find(socket.IPPROTO_UDP, ("::1", port), ("::1", 9)) == owner(one)
    assert owners.find(socket.IPPROTO_UDP, ("::1", port), ("::1", 9)) is None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stub:
        stub.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        stub.bind(("127.0.0.53", 0))
        here = stub.getsockname()
        assert owners.find(socket.IPPROTO_UDP, here, ("127.0.0.53", 9)) == owner(stub)
        # Any one of a device is found with that alone.
        assert owners.find(socket.IPPROTO_UDP, here, ("192.0.2.9", 9)) is None
        found = owners.find(socket.IPPROTO_UDP, here, ("192.0.2.9", 9), interface=1)
        assert found == owner(stub)
    owners.close()


def test_the_kernel_tells_who_has_left():
    owners = SocketOwners()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for reset in (False, True):
            program = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
            with accepted:
                assert not owners.has_left(accepted)
                program.shutdown(socket.SHUT_WR)
                assert accepted.recv(1) == b""
                assert not owners.has_left(accepted)  # it ended its half alone
                if reset:
                    program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                program.close()
                assert owners.has_left(accepted)
                if not reset:  # it is the one that sent, all the same: its redirected bytes arrive
                    ends = accepted.getpeername(), accepted.getsockname()
                    assert owners.find(socket.IPPROTO_TCP, *ends) is not None
                    assert owners.user_of(socket.IPPROTO_TCP, ends[0], accepted) == UNKNOWN.user
    owners.close()
