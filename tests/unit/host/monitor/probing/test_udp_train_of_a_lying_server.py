"""Servers that answer trains with lies, or slowly: an end as a problem, and no figure that cannot be."""

import asyncio
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest

from cedos.host.monitor.probing import wire
from cedos.host.monitor.probing.probes import ProbeServer

HERE = ip_address("127.0.0.1")
KEY = b"k" * 32


@asynccontextmanager
async def liar(answer):
    """A server that answers each datagram with what `answer` makes of it."""

    class Protocol(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, source):
            for each in answer(data, source):
                self.transport.sendto(each, source)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Protocol, local_addr=("127.0.0.1", 0))
    try:
        port = transport.get_extra_info("sockname")[1]
        yield ProbeServer(HERE, port, KEY, packets=10, packet_bytes=200)
    finally:
        transport.close()


def lying(train_of, key=KEY):
    """Greets as it should; then answers an ASK by `train_of`."""

    def answer(data, source):
        message = wire.decode(data, KEY)
        if isinstance(message, wire.ProbeHello):
            return [wire.encode(wire.Cookie(message.session, b"c" * 16), key)]
        if isinstance(message, wire.TrainRequest):
            return train_of(message)
        return []

    return answer


def packets(session, count=10, size=200, key=KEY):
    return [
        wire.encode(wire.TrainPacket(session, n, count), key, size) for n in range(min(count, 50))
    ]


LIES = {
    "wrong key": (lying(lambda ask: [], key=b"x" * 32), "not signed with this key (greeting)"),
    "an echo": (lambda data, source: [data], "no answer in time (greeting)"),
    "nothing after the greeting": (lying(lambda ask: []), "no answer in time (train)"),
    "packets with a wrong key": (
        lying(lambda ask: packets(ask.session, key=b"x" * 32)),
        "not signed with this key (train)",
    ),
    "an earlier train": (lying(lambda ask: packets(b"r" * 16)), "not signed with this key (train)"),
    "another count": (lying(lambda ask: packets(ask.session, 60_000)), "not signed"),
    "another size": (lying(lambda ask: packets(ask.session, size=100)), "not signed"),
    "truncated": (lying(lambda ask: [p[:150] for p in packets(ask.session)]), "not signed"),
    "one packet, many times": (
        lying(lambda ask: packets(ask.session)[:1] * 30),
        "fewer than two of the train's packets arrived",
    ),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_train_that_is_a_lie_ends_as_a_problem(lie, measured):
    answer, expected = LIES[lie]
    async with liar(answer) as server:
        outcome = await measured(server, timeout_s=0.5)
        assert expected in outcome.problem


async def test_a_slow_server_is_measured_as_far_as_it_came(measured):
    async with liar(lying(lambda ask: packets(ask.session)[:5])) as server:
        outcome = await measured(server, timeout_s=0.5)
        assert outcome.indicators["udp_loss"] == 0.5
        # The four packets after the first in nearly half a second, not in the instant that they took.
        assert outcome.indicators["udp_bps"] < 4 * 8 * 228 / 0.3
