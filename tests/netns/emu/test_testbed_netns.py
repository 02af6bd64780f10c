"""The testbed in namespaces: the kernel's settings, services, TCP memory."""

import socket
from pathlib import Path

import pytest
from kit.waiting import wait_until

from cedos.errors import EmulationError
from emu.testbed import netns
from emu.testbed.counters import TcpMemory
from emu.testbed.netns import Namespace
from emu.testbed.services import Service

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
CHOSEN = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def test_cubic_is_chosen_inside_and_nothing_outside(make_namespace):
    before = ALLOWED.read_text(), CHOSEN.read_text()
    one, two = make_namespace("one"), make_namespace("two")
    netns.use_cubic([one, two])
    for namespace in (one, two):
        assert namespace.sysctl("net.ipv4.tcp_congestion_control") == "cubic"
    assert (ALLOWED.read_text(), CHOSEN.read_text()) == before


def test_what_a_killed_one_widened_is_narrowed_by_the_next(make_namespace, tmp_path, monkeypatch):
    """The host's list is a file of our own here: what is tested is who writes it when."""
    allowed, lock = tmp_path / "allowed", tmp_path / "lock"
    allowed.write_text("reno bbr cubic\n")
    lock.write_text("reno bbr\n")
    monkeypatch.setattr(netns, "_ALLOWED", allowed)
    monkeypatch.setattr(netns, "_LOCK", lock)
    netns.use_cubic([])
    assert allowed.read_text() == "reno bbr\n"
    assert lock.read_text() == ""


def test_an_error_inside_leaves_the_host_as_it_was(tmp_path, monkeypatch):
    allowed, lock = tmp_path / "allowed", tmp_path / "lock"
    allowed.write_text("reno bbr\n")
    monkeypatch.setattr(netns, "_ALLOWED", allowed)
    monkeypatch.setattr(netns, "_LOCK", lock)
    with pytest.raises(FileNotFoundError):
        netns.use_cubic([Namespace("cedos-test-that-is-not-there")])
    assert allowed.read_text() == "reno bbr\n"
    assert lock.read_text() == ""


def test_offloads_are_off(make_namespace):
    namespace = make_namespace("wire")
    namespace.ip("link", "add", "one", "type", "veth", "peer", "name", "two")
    with namespace.entered():
        netns.without_offloads("one")
    features = {name: namespace.run("ethtool", "-k", name).stdout for name in ("one", "two")}
    for feature in ("tx-tcp-segmentation", "generic-segmentation-offload"):
        assert f"{feature}: off" in features["one"]
        assert f"{feature}: on" in features["two"]
    assert "generic-receive-offload: off" in features["one"]


# A shell that leaves a child behind, tells its number, and ends or stays.
BEGINS = "sleep 600 & echo $! > {child}; {then}"


def begun(make_namespace, folder, then):
    """The service, and the child that it began."""
    child = folder / "child"
    command = BEGINS.format(child=child, then=then)
    service = Service(make_namespace("host"), "sh", "-c", command, output=folder / "sh.out")
    wait_until(lambda: child.exists() and child.read_text().strip())
    return service, int(child.read_text())


def alive(pid):
    """Return whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def gone(pid):
    return wait_until(lambda: not alive(pid), 10)


@pytest.mark.parametrize("then", ["exit 0", "exec sleep 600", "trap '' TERM; wait"])
def test_children_do_not_stay_behind(make_namespace, tmp_path, then, monkeypatch):
    monkeypatch.setattr("emu.testbed.services._STOP_TIMEOUT_S", 0.3)
    service, child = begun(make_namespace, tmp_path, then)
    if then == "exit 0":
        with pytest.raises(EmulationError, match="does not answer"):
            service.wait_for(lambda: False)
    assert alive(child)
    service.close()
    assert gone(child)
    service.close()


_BYTES = 4_000_000
_PAGE = 4096


def test_bytes_that_nobody_reads_are_seen(make_namespace):
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
