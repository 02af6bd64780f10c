"""Timed lookups against resolvers on loopback that answer wrongly."""

import asyncio
import struct
from contextlib import contextmanager
from ipaddress import ip_address

import pytest
from kit.waiting import counting_turns

from cedos.host.monitor.dns_message import DnsFault
from cedos.host.monitor.probing import dns_probe
from cedos.host.monitor.probing.dns_probe import NO_ANSWER
from cedos.model import Network, NetworkKind

HERE = ip_address("127.0.0.1")
LO = Network("lo", "lo", 1, NetworkKind.ETHERNET, False)


def found(question, address, *, flags=0x8180, number=b""):
    """An answer to a question: one address."""
    record = b"\xc0\x0c" + struct.pack("!2HIH", 1, 1, 60, 4) + ip_address(address).packed
    head = (number or question[:2]) + struct.pack("!5H", flags, 1, 1, 0, 0)
    return head + question[12:] + record


def other_number(question):
    return bytes(byte ^ 0xFF for byte in question[:2])


PUBLIC = "93.184.216.34"
ANSWERS = {
    "honestly": (lambda q: [found(q, PUBLIC)], None),
    "with a private address": (lambda q: [found(q, "10.0.0.1")], DnsFault.HIJACKED),
    "cut off": (lambda q: [found(q, PUBLIC, flags=0x8380)], DnsFault.TRUNCATED),
    "that it will not": (lambda q: [found(q, PUBLIC, flags=0x8185)], DnsFault.REFUSED),
    "to somebody else": (lambda q: [found(q, PUBLIC, number=other_number(q))], NO_ANSWER),
    "to somebody else, first": (
        lambda q: [found(q, PUBLIC, number=other_number(q)), found(q, PUBLIC)],
        None,
    ),
    "noise": (lambda q: [b"\xff" * 40], NO_ANSWER),
    "an echo": (lambda q: [q], NO_ANSWER),
    "nothing": (lambda q: [], NO_ANSWER),
}


@contextmanager
def resolving(answer):
    """A resolver that says that, until the block ends."""
    transports = []

    class Protocol(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            transports.append(transport)

        def datagram_received(self, data, source):
            for each in answer(data):
                transports[0].sendto(each, source)

    yield Protocol
    for transport in transports:
        transport.close()


async def looked_up(answer, timeout_s):
    with resolving(answer) as protocol:
        loop = asyncio.get_running_loop()
        made, _ = await loop.create_datagram_endpoint(protocol, local_addr=(str(HERE), 0))
        port = made.get_extra_info("sockname")[1]
        return await dns_probe.run(LO, "example.com", resolver=HERE, port=port, timeout_s=timeout_s)


async def test_answers_to_others_leave_turns_to_other_tasks():
    """A network's resolver that sends them without end held up the daemon."""
    async with counting_turns() as turns:
        outcome = await looked_up(
            lambda q: [found(q, PUBLIC, number=other_number(q))] * 100 + [found(q, PUBLIC)], 10.0
        )
        assert turns() >= 100
    assert outcome == ""


@pytest.mark.parametrize("how", ANSWERS)
async def test_only_an_honest_answer_counts(how):
    answer, wrong = ANSWERS[how]
    silent = wrong is not None and not isinstance(wrong, DnsFault)
    assert await looked_up(answer, 0.3 if silent else 10.0) == (wrong or "")
