"""A watch of answers to look-ups, without a kernel: what it posts, and which verdicts it gives."""

import struct
from ipaddress import ip_address, ip_interface

from cedos.controller.events import AnswersRead
from cedos.host.lookups.answers import AnswerWatch
from cedos.host.lookups.watch import datagram
from cedos.host.monitor import dns_message as dns
from cedos.host.profiler.frame import CapturedPacket
from cedos.kernel.packet_queue import QueuedPacket
from cedos.model import FlowKey, Network, NetworkKind

HOST = "updates.example"
OWN, STRANGER = ip_address("192.0.2.53"), ip_address("198.51.100.53")
LOCAL = ip_address("192.0.2.2")
WLAN = Network(
    *("wlan0", "wlan0", 2, NetworkKind.WIFI, False),
    addresses=(ip_interface("192.0.2.2/24"),),
    resolvers=(OWN,),
)


def answer(name, address):
    question = dns.question(7, name)
    record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + ip_address(address).packed
    return question[:2] + b"\x81\x80\0\x01\0\x01\0\0\0\0" + question[12:] + record


class Watch(AnswerWatch):
    """A watch whose events are `posted`, and whose verdicts are `passed`, by number."""

    def __init__(self):
        self.posted = []
        self._passed = {}
        self.captured = []
        self.behind = 0  # how many looks do not take all
        self._opened_by_tcp = False
        queue = self
        super().__init__(self.posted.append, lambda: [WLAN], queue, self.held, self.on_look)

    def on_look(self):
        if self.behind:
            self.behind -= 1
            return False
        while self.captured:
            self.on_captured(self.captured.pop())
        return True

    async def held(self, on): ...

    def decide(self, passed, dropped):
        assert not self._passed.keys() & {*passed, *dropped}
        self._passed |= dict.fromkeys(passed, True) | dict.fromkeys(dropped, False)

    @property
    def passed(self):
        self._tell_verdicts()
        return self._passed

    def asks(self, name=HOST, key=None, kind=dns.A):
        key = key or FlowKey(LOCAL, 4000, OWN, 53, "udp")
        question = dns.question(7, name, kind)
        if key.protocol == "tcp":
            question = struct.pack("!H", len(question)) + question
        self.on_captured(CapturedPacket(key, True, question))

    def comes(self, number, payload, source=OWN):
        """Have an answer held; return what is told of it."""
        before = len(self.posted)
        key = FlowKey(LOCAL, 4000, source, 53, "udp")
        self._take([QueuedPacket(number, datagram(key, payload))])
        (told,) = self.posted[before:] or (None,)
        assert told is None or isinstance(told, AnswersRead)
        return told

    def comes_by_tcp(self, number, at, payload, flags=0x18):
        """Have a segment held; the first one's connection is opened before it."""
        if not self._opened_by_tcp and not flags & 2:
            self.comes_by_tcp(0, at - 1, b"", flags=0x12)
            assert self.passed.pop(0) is True
        self._opened_by_tcp = True
        head = struct.pack("!HHIIBBHHH", 53, 4000, at, 1, 5 << 4, flags, 1000, 0, 0)
        length = 20 + len(head) + len(payload)
        ends = OWN.packed + LOCAL.packed
        ip = struct.pack("!BBHHHBBH", 0x45, 0, length, 1, 0, 64, 6, 0) + ends
        before = len(self.posted)
        self._take([QueuedPacket(number, ip + head + payload)])
        return self.posted[before:]
