"""The netlink codec, and parsers that no bytes can break."""

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.kernel import netlink
from cedos.kernel.netlink import BatchedReader

TYPES = st.sampled_from([2, 3, 16, 20, 28, 0x100, 0x102])


@given(
    st.lists(
        st.tuples(st.integers(1, 0x3FFF), st.binary(max_size=40)),
        max_size=8,
        unique_by=lambda pair: pair[0],
    )
)
def test_attributes_come_back(pairs):
    data = b"".join(netlink.attribute(kind, value) for kind, value in pairs)
    assert netlink.attributes(data) == dict(pairs)
    assert netlink.attributes(b"1234" + data, 4) == dict(pairs)


@given(
    st.lists(st.tuples(TYPES, st.integers(0, 0xFFFF), st.binary(max_size=30)), max_size=5),
    st.integers(0, 40),
)
def test_messages_come_back_and_a_truncated_one_ends_them(parts, cut):
    datagram = b""
    for kind, flags, payload in parts:
        one = netlink.message(kind, flags, 7, payload)
        datagram += one + b"\0" * (-len(one) % 4)
    found = list(netlink.messages(datagram))
    assert [(m.type, m.flags, m.payload) for m in found] == parts
    shorter = list(netlink.messages(datagram[: max(0, len(datagram) - cut)]))
    assert shorter == found[: len(shorter)]


INTERVAL_S = 0.05


class Reader:
    """A pipe, and when it was found to hold something."""

    def __init__(self):
        self.fd, self.end = os.pipe()
        os.set_blocking(self.fd, False)
        self.got = []
        self.at_s = []

    def read(self):
        try:
            self.got.append(os.read(self.fd, 100))
        except BlockingIOError:
            return False
        self.at_s.append(asyncio.get_running_loop().time())
        return True

    def write(self, data):
        os.write(self.end, data)


@pytest.fixture
def pipes():
    made = [Reader(), Reader()]
    yield made
    for each in made:
        os.close(each.fd)
        os.close(each.end)


async def test_what_comes_alone_is_read_without_waiting_for_an_interval(pipes):
    reader = BatchedReader(pipes[0].fd, pipes[0].read, interval_s=1000.0)
    pipes[0].write(b"a")
    async with asyncio.timeout(10):
        while not pipes[0].got:
            await asyncio.sleep(0)
    reader.close()
    assert pipes[0].got == [b"a"]


async def test_what_comes_often_is_read_together(pipes):
    reader = BatchedReader(pipes[0].fd, pipes[0].read, INTERVAL_S)
    pipes[0].write(b"a")
    async with asyncio.timeout(10):
        while not pipes[0].got:
            await asyncio.sleep(0)
        for text in (b"b", b"c", b"d"):
            pipes[0].write(text)
        while b"".join(pipes[0].got) != b"abcd":
            await asyncio.sleep(0.001)
        # It hears again after a beat without anything.
        await asyncio.sleep(3 * INTERVAL_S)
        pipes[0].write(b"e")
        while b"".join(pipes[0].got) != b"abcde":
            await asyncio.sleep(0.001)
    reader.close()
    assert len(pipes[0].got) < 5, "what came while it rested came together"


async def test_intervals_are_common(pipes):
    both = [BatchedReader(each.fd, each.read, INTERVAL_S) for each in pipes]
    async with asyncio.timeout(20):
        for each in pipes:
            each.write(b"a")
            while not each.got:
                await asyncio.sleep(0)
            each.write(b"b")
            await asyncio.sleep(0.3 * INTERVAL_S)
        while not all(b"".join(each.got) == b"ab" for each in pipes):
            await asyncio.sleep(0.001)
    beats = [reader._timer.when() for reader in both if reader._timer]
    assert all(abs(at_s / INTERVAL_S - round(at_s / INTERVAL_S)) < 1e-3 for at_s in beats)
    for reader in both:
        reader.close()


async def test_after_its_end_nothing_is_read(pipes):
    reader = BatchedReader(pipes[0].fd, pipes[0].read, 0.001)
    pipes[0].write(b"a")
    async with asyncio.timeout(10):
        while not pipes[0].got:
            await asyncio.sleep(0)
    reader.close()
    pipes[0].write(b"b")
    await asyncio.sleep(0.01)
    assert pipes[0].got == [b"a"]


async def test_what_is_read_may_end_the_reading(pipes):
    def read():
        if pipes[0].read() and pipes[0].got[-1] == b"end":
            reader.close()
        return True

    reader = BatchedReader(pipes[0].fd, read, 0.01)
    async with asyncio.timeout(10):
        for text in (b"a", b"end"):
            pipes[0].write(text)
            while text not in pipes[0].got:
                await asyncio.sleep(0.001)
    pipes[0].write(b"late")
    await asyncio.sleep(0.05)
    assert pipes[0].got == [b"a", b"end"]
