"""The closing of sockets: the kernel is asked to close those on which nothing comes, and no others."""

import errno
import socket
import time
from ipaddress import ip_address

import pytest

from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.model import FlowKey

MPTCP = 262
DEAD_S = 1.2


def key_of(connection):
    (local, local_port), (remote, remote_port) = (
        each[:2] for each in (connection.getsockname(), connection.getpeername())
    )
    return FlowKey(ip_address(local), local_port, ip_address(remote), remote_port)


class Closer:
    """The kernel of the laptop's namespace."""

    def __init__(self, host):
        self._host = host
        with host.client.entered():
            self.kernel = LinuxKernel()

    def close_silent(self, key):
        with self._host.client.entered():
            return self.kernel.close_silent(key)


@pytest.fixture
def kernel(host):
    made = Closer(host)
    yield made
    made.kernel.close()


def dies(host, version=4):
    program = "iptables" if version == 4 else "ip6tables"
    host.server.run(program, "-t", "raw", "-A", "PREROUTING", "-j", "DROP")


@pytest.mark.parametrize("version", [4, 6])
def test_a_connection_on_which_nothing_comes_is_closed(host, kernel, version):
    stuck, other = host.connect(version), host.connect(version)
    stuck.sendall(b"x")
    assert stuck.recv(1) == b"x"
    dies(host, version)
    stuck.sendall(b"y")
    assert not kernel.close_silent(key_of(stuck)), "it has not waited for a second"
    time.sleep(DEAD_S)
    key = key_of(stuck)
    assert kernel.close_silent(key)
    with pytest.raises(ConnectionAbortedError):
        stuck.recv(1)
    assert not kernel.close_silent(key), "it has ended"
    assert other.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def test_one_that_is_answered_stays(host, kernel):
    living = host.connect(4)
    time.sleep(DEAD_S)
    living.sendall(b"x")
    assert living.recv(1) == b"x"
    assert not kernel.close_silent(key_of(living))
    living.sendall(b"y")
    assert living.recv(1) == b"y"


def test_mptcp_connections_those_that_open_and_listening_sockets_stay(host, kernel):
    moved = host.connect(4, MPTCP)
    with host.client.entered():
        listening = socket.create_server(("192.168.43.2", 9000))
        opening = socket.socket()
    with listening, opening:
        dies(host)
        opening.setblocking(False)
        assert opening.connect_ex(("198.51.100.1", 8000)) == errno.EINPROGRESS
        moved.sendall(b"x")
        time.sleep(DEAD_S)
        assert not kernel.close_silent(key_of(moved))
        local = ip_address("192.168.43.2")
        assert not kernel.close_silent(FlowKey(local, 9000, ip_address("0.0.0.0"), 0))
        port = opening.getsockname()[1]
        assert not kernel.close_silent(FlowKey(local, port, ip_address("198.51.100.1"), 8000))
        for one in (moved, opening, listening):
            assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def test_within_the_host_nothing_is_closed(host, kernel):
    with host.client.entered():
        listening = socket.create_server(("127.0.0.1", 9001))
        connection = socket.create_connection(("127.0.0.1", 9001))
    with listening, connection:
        time.sleep(DEAD_S)
        assert not kernel.close_silent(key_of(connection))
