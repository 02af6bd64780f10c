"""Neighbours that attack: a helper with the packets in its hands, and a host on the link."""

import itertools
import os
import secrets
import socket
import time
from pathlib import Path

import pytest
from kit.packet_queue import PacketQueue, with_another_last_byte
from kit.street import HELPERS
from kit.waiting import wait_until

from emu.testbed.neighbours import LINK
from emu.testbed.services import Watcher

# Several of these at once are too much for two cores: they run one after the other.
pytestmark = pytest.mark.xdist_group("sharing")

_ALL = socket.htons(0x0003)
_IPV4 = b"\x08\x00"
_SHARING = (338).to_bytes(2)


def test_a_helper_can_neither_read_nor_change_what_it_carries(street):
    seen = []

    def change(packet):
        seen.append(packet)
        return with_another_last_byte(packet)

    count = 6_000_000
    with PacketQueue(street.there.helpers[0].namespace, LINK, change):
        download = street.download(count)
        assert download.end() == 0
    assert (download.received_bytes, download.wrong_bytes) == (count, 0)
    assert seen
    # The file consists of zeros.
    assert not any(bytes(32) in packet for packet in seen)


def test_a_helper_that_holds_back_what_comes_is_left_and_hardly_paid(street):
    """A helper forwards small packets at once, answers each Hello, and keeps data for seconds."""
    before = street.owed_bytes("requestor")
    count = 12_000_000
    download = street.download(count)
    download.read_until(count // 4)
    requestor = street.there.requestor
    paths = requestor.ip("-4", "addr").count("169.254.")
    with PacketQueue(street.there.helpers[0].namespace, LINK, lambda packet: packet, late_s=4.0):
        began_s = time.monotonic()
        wait_until(lambda: requestor.ip("-4", "addr").count("169.254.") != paths, every_s=0.05)
        took_s = time.monotonic() - began_s
        assert download.end() == 0
    print(f"left after {took_s:.1f} s")
    assert took_s < 2.0 + 1.5
    assert (download.received_bytes, download.wrong_bytes) == (count, 0)
    street.wait_for_receipts(sum(before.values()) + count)
    owed = street.owed_bytes("requestor")
    carried = {pair[1]: owed[pair] - before.get(pair, 0) for pair in owed}
    assert 1.5 * carried["helper-0"] < min(carried["helper-1"], carried["helper-2"])


class _Recorder(Watcher):
    """The datagrams of the protocol on the link, as the bridge passes them on, each once."""

    def __init__(self, air):
        super().__init__(air, "recorder")
        self.frames = {}

    def _watch(self):
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, _ALL) as listening:
            listening.settimeout(0.1)
            self._ready.set()
            while not self._stop.is_set():
                try:
                    frame = listening.recv(2048)
                except TimeoutError:
                    continue
                ports = frame[34:36], frame[36:38]
                if frame[12:14] == _IPV4 and _SHARING in ports and frame[42:46] == b"CSHR":
                    self.frames[frame] = None


def _forged(frame):
    """Return a frame with another byte somewhere in its datagram, without UDP's checksum."""
    at = 42 + secrets.randbelow(len(frame) - 42)
    return frame[:40] + bytes(2) + frame[42:at] + bytes([frame[at] ^ 0x55]) + frame[at + 1 :]


def _busy_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_what_is_replayed_or_forged_on_the_link_changes_nothing(standing):
    hosts, air = standing.hosts, standing.there.air
    helpers = [hosts.help(number) for number in range(HELPERS)]
    with _Recorder(air) as recorder:
        # The first requestor leaves all, so that its Leaves are replayed, too.
        first = hosts.request()
        standing.wait_for(HELPERS)
        first.close()
        request = hosts.request()
        standing.wait_for(HELPERS)
        time.sleep(3.0)
    frames = list(recorder.frames)
    assert len(frames) > 6 * HELPERS
    hosts.forward()
    watched = ["requestor", *(f"helper-{number}" for number in range(HELPERS))]
    before = {host: standing.rules(host) for host in watched}
    busy_s = [_busy_s(each.pid) for each in (*helpers, request)]
    ports = ["requestor", *(f"helper-{number}" for number in range(HELPERS))]
    download = standing.download(6_000_000)
    with air.entered():
        sending = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    began_s = time.monotonic()
    with sending:
        # A thousand a second: each as it was, and one with another byte.
        for frame in itertools.cycle(frames):
            for each, port in itertools.product((frame, _forged(frame)), ports):
                sending.sendto(each, (port, 0))
            if time.monotonic() - began_s > 8.0:
                break
            time.sleep(0.008)
    took_s = time.monotonic() - began_s
    more_s = [
        _busy_s(each.pid) - was for each, was in zip((*helpers, request), busy_s, strict=True)
    ]
    assert download.end() == 0
    assert download.wrong_bytes == 0
    print(f"{max(more_s) / took_s:.0%} of a core at most")
    assert {host: standing.rules(host) for host in watched} == before
    assert max(more_s) < 0.5 * took_s
