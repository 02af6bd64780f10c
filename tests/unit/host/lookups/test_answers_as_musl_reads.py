"""What musl's programs take for an address of a name is read as one of the name's, or is dropped.

Of the C libraries musl checks least: neither the bit of answers, nor the question, nor a record's owner.
"""

import os
import struct
from random import Random

import pytest
from kit.answer_watch import HOST, LOCAL, OWN, Watch

from cedos.host.monitor import dns_message as dns
from cedos.kernel.socket_owners import SocketOwners
from cedos.model import FlowKey, address

# A longer search: CEDOS_ANSWERS=1000000.
MOST = int(os.environ.get("CEDOS_ANSWERS", "10000"))
POINTER = b"\xc0\x0c"


def encoded(name):
    return (
        b"".join(bytes((len(each),)) + each.encode("latin-1") for each in name.split(".")) + b"\0"
    )


OWNERS = (
    *(POINTER, POINTER, POINTER, encoded(HOST), encoded(HOST.upper()), encoded("edge.example")),
    *(b"\0", b"\x07updates\xc0\x14", b"\xc0\x30", b"\x0fupdates.example\0", b"\4\xff\xfe\1\0\0"),
)


def record(random):
    kind = random.choice((1, 1, 28, 0x0101, 0x011C, 5, 5, 0x0105, 65, 46))
    if kind & 0xFF in (1, 28):
        length = random.choice((4 if kind & 0xFF == 1 else 16, 4, 16, 5))
        data = bytes((random.randint(1, 223),)) + random.randbytes(length - 1)
    elif kind == 65:
        data = b"\0\1\0" + b"\0\4\0\4" + random.randbytes(4)
    else:
        data = random.choice(OWNERS)
    family = random.choice((1, 1, 1, 3, 254))
    return random.choice(OWNERS) + struct.pack("!HHIH", kind, family, 60, len(data)) + data


def answer(random, question):
    asked = question[12:]
    other = encoded("other.example") + asked[-4:]
    asks = random.choice(
        (
            *([asked] * 5, [], [asked, asked], [other], [asked, other], [other, asked]),
            *([encoded(HOST.upper()) + asked[-4:]], [b"\7updates\xc0\x14\7example\0" + asked[-4:]]),
        )
        if random.random() < 0.5
        else ([asked],)
    )
    records = [record(random) for _ in range(random.randint(0, 4))]
    flags = random.choice((0x8180, 0x8180, 0x8580, 0x0180, 0x8380, 0x8183, 0x9180, 0xFFF0))
    counts = [len(asks), len(records), 0, 0]
    if random.random() < 0.1:
        counts = [random.randint(0, 4) for _ in counts]
    found = bytearray(struct.pack("!H4H", flags, *counts) + b"".join((*asks, *records)))
    for _ in range(random.choice((0, 0, 1, 2))):
        found[random.randrange(len(found))] = random.choice((0, 0xC0, 0xFF, random.randrange(256)))
    end = random.randrange(len(found)) if random.random() < 0.05 else len(found)
    return question[:2] + bytes(found[:end])


def read_by_musl(data):
    """Return the addresses as `__dns_parse` and its caller do."""
    found = set()
    if len(data) < 12 or data[3] & 15:
        return found

    def name_end(at):
        while at < len(data) and 0 < data[at] < 128:
            at += 1
        return at

    at = 12
    questions, answers = struct.unpack_from("!2H", data, 4)
    for _ in range(questions):
        if (at := name_end(at)) > len(data) - 6:
            return found
        at += 5 + bool(data[at])
    for _ in range(answers):
        if (at := name_end(at)) > len(data) - 12:
            return found
        at += 1 + bool(data[at])
        length = int.from_bytes(data[at + 8 : at + 10], "big")
        if length + 10 > len(data) - at:
            return found
        kind, octets = data[at + 1], data[at + 10 : at + 10 + length]
        if kind in (1, 28):
            if length != (4 if kind == 1 else 16):
                return found
            found.add(address(octets))
        at += 10 + length
    return found


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
async def test_what_musl_takes_for_an_address_is_read_or_dropped(protocol, monkeypatch):
    monkeypatch.setattr(SocketOwners, "find", lambda *_, **__: None)
    random, taken = Random(7), 0
    for number in range(MOST):
        kind = random.choice((dns.A, dns.AAAA))
        question = dns.question(7, HOST, kind)
        content = answer(random, question)
        if not (addresses := read_by_musl(content)):
            continue
        taken += 1
        watch = Watch()
        watch.asks(key=FlowKey(LOCAL, 4000, OWN, 53, protocol), kind=kind)
        if protocol == "udp":
            told = watch.comes(number, content)
        else:
            told, *_ = watch.comes_by_tcp(
                number, 100, struct.pack("!H", len(content)) + content
            ) or [None]
        watch._owners.close()
        if told is None:
            assert watch.passed == {number: False}, (question, content)
        elif not any(each.name == HOST for each in told.mistaken):
            replies = [each for each in (*told.believed, *told.claimed) if each.name == HOST]
            read = {each for reply in replies for each in reply.addresses}
            assert addresses <= read, (question, content)
    assert taken > MOST / 10
