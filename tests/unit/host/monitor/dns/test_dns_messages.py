"""Questions, answers and resolvers of the DNS: what is read of packets and files."""

import asyncio
import struct
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.waiting import lines_of

from cedos.host.monitor import dns_message, resolvers
from cedos.host.monitor.dns_message import (
    AnswerStreams,
    is_public,
    parse,
    question,
)
from cedos.host.monitor.resolvers import (
    FileWatch,
    HostResolvers,
    ResolvConf,
    Resolvers,
    parse_hosts,
    parse_resolved,
)
from cedos.model import FlowKey


def answer(number=7, name="example.com", *addresses, code=0, cut=False, kind=1):
    asked = bytearray(question(number, name))
    asked[-4:-2] = struct.pack("!H", kind)
    flags = 0x8180 | code | (0x0200 if cut else 0)
    head = struct.pack("!6H", number, flags, 1, len(addresses), 0, 0)
    records = b""
    for text in addresses:
        octets = ip_address(text).packed
        kind = 1 if len(octets) == 4 else 28
        records += b"\xc0\x0c" + struct.pack("!2HIH", kind, 1, 60, len(octets)) + octets
    return head + bytes(asked[12:]) + records


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *(("198.51.100.1", True), ("2001:db8::1", True), ("100.64.0.1", False)),
        *(("fd00::1", False), ("10.1.1.1", False), ("172.31.0.1", False), ("::1", False)),
    ],
)
def test_addresses_that_public_names_may_have(address, public):
    assert is_public(ip_address(address)) is public


def test_a_reader_of_names_ends():
    """Pointers in a circle, to themselves, forwards, and many of them."""
    head = b"\0\1\x81\x80\0\1\0\2\0\0\0\0\1a\0\0\1\0\1"
    for target in (b"\xc0\x1f", b"\xc0\xff", b"\xc0\x0c", b"\1b\xc0\x1f", b"\3"):
        record = b"\xc0\x0c" + struct.pack("!HHIH", 5, 1, 60, len(target)) + target
        reply = parse(head + record + record)
        assert reply is None or all(len(alias) < 300 for alias in reply.aliases)


def test_hints_of_a_service_are_addresses():
    """Browsers use the addresses of HTTPS records (RFC 9460)."""
    hints = struct.pack("!HH8s", 4, 8, ip_address("192.0.2.1").packed * 2)
    hints += struct.pack("!HH16s", 6, 16, ip_address("2001:db8::1").packed)
    data = struct.pack("!H", 1) + b"\3svc\7example\0" + struct.pack("!HH2s", 1, 2, b"h2") + hints
    asked = question(7, "updates.example", 65)
    record = b"\xc0\x0c" + struct.pack("!HHIH", 65, 1, 60, len(data)) + data
    reply = parse(asked[:2] + b"\x81\x80\0\x01\0\x01\0\0\0\0" + asked[12:] + record)
    assert [str(each) for each in reply.addresses] == ["192.0.2.1", "192.0.2.1", "2001:db8::1"]
    assert reply.aliases == ("svc.example",)


def told(kind, records, count=1):
    asked = question(7, "updates.example", kind)
    return parse(asked[:2] + struct.pack("!HHHHH", 0x8180, 1, count, 0, 0) + asked[12:] + records)


def test_the_target_of_a_service_is_an_alias():
    """Follow it: apt looks up the target of deb.debian.org's SRV record, and never that name itself."""
    data = struct.pack("!HHH", 10, 1, 80) + b"\3web\7example\0"
    record = b"\xc0\x0c" + struct.pack("!HHIH", 33, 1, 60, len(data)) + data
    assert told(33, record).aliases == ("web.example",)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (33, struct.pack("!HHH", 10, 1, 80) + b"\xc0\xff"),
        (5, b"\3web\xc0\xff"),
        (65, b"\0\1\3s\xc3\xb6\7example\0" + struct.pack("!HH4s", 4, 4, b"\xc0\0\2\1")),
    ],
)
def test_a_target_that_is_not_read_leaves_nothing_of_the_answer(kind, data):
    """Believe no part of it: programs follow pointers forwards, and take the hints behind odd names."""
    record = b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 60, len(data)) + data
    assert told(kind, record) is None


def test_an_address_of_ipv4_in_ipv6_is_one_of_ipv4():
    """Read it as IPv4's, as its packets are: a ruled name went over the forbidden network."""
    mapped = ip_address("::ffff:192.0.2.1").packed
    record = b"\xc0\x0c" + struct.pack("!HHIH", 28, 1, 60, 16) + mapped
    assert told(28, record).addresses == (ip_address("192.0.2.1"),)
    assert parse_hosts("::ffff:192.0.2.1 host") == {"host": (ip_address("192.0.2.1"),)}


@pytest.mark.parametrize(
    "owner",
    [b"\3a\0b\0", b"\3a\x80b\0", b"\x44" + b"a" * 68 + b"\0", b"\1a" * 130 + b"\0", b"\xc0"],
)
def test_records_that_not_all_programs_read_alike_are_no_answer(owner):
    """Refuse them: musl ends a label at the first byte of 0 or over 127, and found an address within."""
    record = owner + struct.pack("!HHIH", 16, 1, 60, 1) + b"\0"
    assert told(1, b"\xc0\x0c" + record[len(owner) :]) is not None
    assert told(1, record) is None
    assert told(1, b"\xc0\x0c" + record[len(owner) : -1]) is None, "it is cut off"


def record(owner, kind, data):
    return owner + struct.pack("!HHIH", kind, 1, 60, len(data)) + data


LONG_NAME, ASKED_NAME = b"\1a" * 126 + b"\0", b"\xc0\x0c"
SERVER = struct.pack("!3H", 1, 1, 1)
CHAIN = [record(b"\2%02d\0" % at, 5, b"\2%02d\0" % (at + 1)) for at in range(10, 73)]
COSTLY = {
    "addresses": (1, record(ASKED_NAME, 1, b"\7\7\7\7")),
    "texts": (16, record(ASKED_NAME, 16, b"")),
    "aliases": (5, record(ASKED_NAME, 5, ASKED_NAME)),
    "servers": (33, record(ASKED_NAME, 33, SERVER + ASKED_NAME)),
    "services": (65, record(ASKED_NAME, 65, bytes(3))),
    "hints": (65, record(ASKED_NAME, 65, bytes(3) + struct.pack("!HH", 4, 64_000) + bytes(64_000))),
    "names spelt out": (1, record(LONG_NAME, 5, LONG_NAME)),
}


@pytest.mark.parametrize("what", COSTLY)
def test_no_answer_takes_many_steps(what):
    """Read 1,024 at most of it: one of 64 KiB to a question of 100 bytes took 0.2 s of a processor."""
    kind, one = COSTLY[what]
    head = LONG_NAME + struct.pack("!HH", kind, 1)
    count = (65_500 - 12 - len(head)) // len(one)
    message = struct.pack("!6H", 7, 0x8180, 1, count, 0, 0) + head + one * count
    assert lines_of(lambda: parse(message)) < 1024 * 30
    assert parse(message) is None
    assert dns_message.read_response(message).kind == kind
    assert lines_of(lambda: dns_message.read_response(message)) < 2000


def test_an_answer_takes_no_more_steps_than_it_has_bytes():
    """Count what is told of each name: of 64 aliases in a row each has all addresses at the end."""
    first = record(ASKED_NAME, 33, SERVER + b"\00210\0")
    last = record(b"\00273\0", 1, b"\7\7\7\7")
    for many in (1, 1000):
        records = first + b"".join(CHAIN) + last * many
        assert told(33, records, 64 + many) is None
        lines = lines_of(partial(told, 33, records, 64 + many))
        assert lines < 15 * min(len(records), 1024)
    records = first + b"".join(CHAIN[:5]) + last.replace(b"73", b"15") * 9
    assert len(told(33, records, 15).owners) == 6


def test_answers_with_hundreds_of_addresses_are_read():
    records = b"".join(record(ASKED_NAME, 1, struct.pack("!I", at)) for at in range(1, 1001))
    assert len(told(1, records, 300).addresses) == 300


LABEL = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=20)
NAMES = st.lists(LABEL, min_size=1, max_size=5).map(".".join)


def reply_to(question, code=0, records=b""):
    return question[:2] + bytes((0x81, 0x80 | code)) + question[4:] + records


@given(st.integers(0, 0xFFFF), NAMES, st.integers(0, 15), st.binary(max_size=50))
def test_an_answer_is_known_by_number_and_name(number, name, code, records):
    question = dns_message.question(number, name)
    reply = dns_message.parse(reply_to(question, code, records))
    assert (reply.number, reply.code, reply.name, reply.kind) == (number, code, name, 1)
    assert dns_message.fault(reply_to(question), number, name.upper() + ".") is None
    for wrong in ((number ^ 1, name), (number, name + "x")):
        assert dns_message.fault(reply_to(question), *wrong) is dns_message.DnsFault.FOREIGN
    # A question is no answer.
    assert dns_message.parse(question) is None


@given(st.integers(0, 0xFFFF), NAMES, st.binary(max_size=50))
def test_a_failure_answers_the_question_alone(number, name, more):
    question = dns_message.question(number, name)
    failed = dns_message.failure(question + more)  # (EDNS and the like)
    reply = dns_message.parse(failed)
    assert (reply.number, reply.code, reply.name, reply.kind) == (number, 2, name, 1)
    assert len(failed) == len(question)
    assert dns_message.fault(failed, number, name) is dns_message.DnsFault.REFUSED


@given(st.binary(max_size=80))
def test_whatever_asks_can_be_told_of_a_failure(tail):
    question = b"\0\7\1\0\0\1\0\0\0\0\0\0" + tail
    if (asked := dns_message.read_question(question)) is not None:
        reply = dns_message.parse(dns_message.failure(question))
        assert (reply.name, reply.kind, reply.code) == (*asked, 2)


@pytest.mark.parametrize(
    "name", ["", ".", "a..b", "x" * 64 + ".org", ".".join(["abcdefg"] * 40), "bücher.de"]
)
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match=r"name|ASCII"):
        dns_message.question(1, name)


KEY = FlowKey(ip_address("192.0.2.2"), 4000, ip_address("192.0.2.53"), 53)


def numbered(at):
    return at & 0xFFFFFFFF


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=5),
    st.lists(st.integers(1, 30), min_size=1),
    st.integers(0, 2**32 - 1),
)
def test_messages_in_tcp_are_found_however_they_are_cut(messages, cuts, first):
    stream = b"".join(struct.pack("!H", len(each)) + each for each in messages)
    streams, found, at = AnswerStreams(), [], 0
    assert streams.messages(KEY, first, stream) is None, "it may begin anywhere"
    assert streams.begin(KEY, first)
    assert streams.messages(KEY, numbered(first - 1), b"x" + stream) is None
    while at < len(stream):
        size = cuts[at % len(cuts)]
        part = stream[at : at + size]
        early = (
            streams.messages(KEY, numbered(first + at + 1), stream[at + 1 :] or b"x")
            if at
            else None
        )
        assert early is None
        found += streams.messages(KEY, numbered(first + at), part) or []
        assert streams.messages(KEY, numbered(first + at), part) == []  # it is sent again
        at += len(part)
    assert found == messages


def test_of_two_beginnings_of_a_stream_the_kernel_may_have_taken_either():
    streams = AnswerStreams()
    assert [streams.begin(KEY, first, 1) for first in (7, 7, 8, 7)] == [True, True, False, True]
    assert streams.messages(KEY, 7, b"\0\3a") == []
    reading = streams.reading(KEY)
    assert streams.begin(KEY, 9, 2), "another socket has the port by now"
    streams.restore(KEY, reading)
    assert streams.messages(KEY, 9, b"\0\1a") == [b"a"]


def test_one_users_streams_push_out_none_of_anothers():
    streams = AnswerStreams()
    streams.begin(KEY, 7, 1, user=1000)
    assert streams.messages(KEY, 7, b"\0\3a") == []
    for port in range(65):
        streams.begin(replace(KEY, local_port=port), 7, 2, user=1001)
    assert streams.reading(replace(KEY, local_port=0)) is None
    assert streams.messages(replace(KEY, local_port=0), 10, b"\0\1a") is None
    assert streams.messages(KEY, 10, b"bc") == [b"abc"]


GOOGLE, HOME, V6 = ip_address("8.8.8.8"), ip_address("10.0.1.1"), ip_address("fe80::1")


async def test_resolv_conf_is_parsed_once_until_it_changes(tmp_path, monkeypatch):
    """Keep it: each answer, connection and destination had it read three or four times."""
    file = tmp_path / "resolv.conf"
    assert resolvers.resolv_conf(file) == ResolvConf()
    file.write_text("nameserver 127.0.0.53\nnameserver 8.8.8.8\n")
    assert (await HostResolvers(None, file).read()).unassigned == (GOOGLE,)
    with monkeypatch.context() as patched:
        patched.setattr(resolvers, "parse_resolv_conf", None)
        assert resolvers.resolv_conf(file).addresses == (ip_address("127.0.0.53"), GOOGLE)
    other = tmp_path / "other"
    other.write_text("nameserver 10.0.1.1\n")
    other.replace(file)
    assert resolvers.resolv_conf(file).addresses == (HOME,)


def test_resolved():
    dns = [
        [2, 2, b"\x0a\x00\x01\x01"], [2, 10, bytes(V6.packed)], [0, 2, b"\x09\x09\x09\x09"],
        [3, 2, b"\x08\x08"], [3, 2], "nonsense", [3, 2, b"\x08\x08\x08\x08"],
        [4, 2, 4], [4, 2, 2**33], [4, 2, 2**64 - 1],  # these ended the watch of networks
    ]  # fmt: skip
    assert parse_resolved(dns) == {2: (HOME, V6), 3: (GOOGLE,)}
    assert parse_resolved(None) == {}


def test_which_servers_are_a_networks_own():
    own = [ip_interface("10.0.1.2/24"), ip_interface("fe80::5/64")]
    known = Resolvers({2: (GOOGLE,)}, (HOME, V6, ip_address("10.0.2.1")))
    assert known.of(2, own, genuine=True) == (GOOGLE,)
    # In another namespace than the host's, its interface numbers mean nothing.
    assert known.of(2, own, genuine=False) == (HOME, V6)
    assert known.of(4, own, genuine=True) == (HOME, V6)
    assert known.of(4, [], genuine=True) == ()


async def test_a_file_that_is_replaced_behind_a_link_is_noticed(tmp_path):
    real, link = tmp_path / "run" / "real.conf", tmp_path / "etc" / "resolv.conf"
    for file in (real, link):
        file.parent.mkdir()
    real.write_text("")
    link.symlink_to(real)
    changed = asyncio.Event()
    watch = FileWatch(link, changed.set)
    try:
        (real.parent / "other").write_text("not this one")
        await asyncio.sleep(0.05)
        assert not changed.is_set()
        (real.parent / "new").write_text("nameserver 10.0.0.1")
        (real.parent / "new").rename(real)
        await asyncio.wait_for(changed.wait(), 5)
    finally:
        watch.close()
    watch.close()


def test_the_hosts_file_is_read():
    found = parse_hosts(
        "127.0.0.1 localhost\n10.0.0.7\tUpdates.Example. dl.updates.example # here\n"
        "fe80::1%eth0 link.example\nnonsense name\n\n10.0.0.8 updates.example\n"
    )
    assert [str(each) for each in found["updates.example"]] == ["10.0.0.7", "10.0.0.8"]
    assert str(found["link.example"][0]) == "fe80::1"
    assert "name" not in found
