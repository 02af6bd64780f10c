"""Events about answers, and the end of those that wait; the queue is a double."""

import asyncio
import socket
import struct
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address

import pytest
from kit.answer_watch import HOST, LOCAL, OWN, STRANGER, Watch, answer
from kit.waiting import counting_turns, until

from cedos.controller.commands import LookUpName
from cedos.controller.events import UNKNOWN_USER, AnswersRead, DnsReply, NameLookedUp
from cedos.errors import CedosError
from cedos.host.lookups import answers
from cedos.host.lookups.watch import datagram
from cedos.host.monitor import dns_message as dns
from cedos.host.monitor import flow_source, resolvers
from cedos.host.monitor.resolvers import HostResolvers, search_domains
from cedos.host.profiler.frame import CapturedPacket
from cedos.kernel.packet_queue import QueuedPacket
from cedos.kernel.socket_owners import UNKNOWN, SocketOwner, SocketOwners
from cedos.model import FlowKey


@pytest.fixture
def watch():
    made = Watch()
    yield made
    made._owners.close()


async def test_only_answers_of_own_resolvers_to_questions_are_believed(watch):
    """A neighbour's datagrams in the resolver's name pushed the true addresses out of a rule."""
    content = answer(HOST, "203.0.113.1")
    reply = dns.parse(content)
    assert reply is not None
    assert watch.comes(1, content) == AnswersRead(1, (), (reply,)), "no program asked"
    watch.asks(key=FlowKey(LOCAL, 4001, OWN, 53, "udp"))
    assert watch.comes(2, content) == AnswersRead(2, (), (reply,)), "another program asked"
    # The question was captured, and is read only now.
    key = FlowKey(LOCAL, 4000, OWN, 53, "udp")
    watch.captured = [CapturedPacket(key, True, dns.question(7, HOST))]
    assert watch.comes(3, content) == AnswersRead(3, (reply,), ())
    watch.asks(key=FlowKey(LOCAL, 4000, STRANGER, 53, "udp"))
    assert watch.comes(4, content, STRANGER) == AnswersRead(4, (), (reply,)), "of a stranger"
    assert watch.passed == {}
    watch.release(3, passes=True)
    watch.release(4, passes=False)
    assert watch.passed == {3: True, 4: False}


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
async def test_what_is_no_answer_to_its_question_reaches_no_program(watch, protocol):
    """Drop it: the C library took it for one, and reached a ruled name over the forbidden network."""
    right = answer(HOST, "203.0.113.1")
    other = answer("other.example", "203.0.113.1")
    pointer = right[:12] + b"\xc0\x12" + dns.question(7, HOST)[-4:] + right[-16:]
    watch.asks(key=FlowKey(LOCAL, 4000, OWN, 53, protocol))
    no_response = b"\0\7\1\0" + right[4:]
    for number, content in enumerate((no_response, other, pointer)):
        for repeated in (number, number + 10):
            if protocol == "udp":
                told = watch.comes(repeated, content)
            else:
                framed = struct.pack("!H", len(content)) + content
                (told,) = watch.comes_by_tcp(repeated, 100, framed)
            assert told.believed == ()
            assert HOST in {each.name for each in told.mistaken}, "the controller drops it"
            watch.release(repeated, passes=False)
    assert watch.comes(5, no_response, ip_address("192.0.2.54")) is None
    assert watch.passed.pop(5) is True, "no question to a VPN's server is known"
    if protocol == "tcp":
        assert watch.comes(6, no_response) is None
        assert watch.passed.pop(6) is False, "a question that is not known could be any"
    refusal = dns.question(7, HOST)[:2] + b"\x81\x81" + bytes(8)
    if protocol == "udp":  # an old resolver's, without its question
        assert watch.comes(3, refusal) is None
        assert watch.passed[3] is True
    assert watch.comes(4, other, STRANGER) is not None, "nothing is known of such a question"


def encoded(name):
    return dns.question(7, name)[12:-4] if name else b"\0"


def record(owner, kind, data):
    return encoded(owner) + struct.pack("!HHIH", kind, 1, 60, len(data)) + data


def answer_with(name, *sections, kind=dns.A):
    """Return an answer with these records in the answer, authority and additional sections."""
    counts = [len(each) for each in (*sections, (), (), ())[:3]]
    asked = dns.question(7, name, kind)
    head = asked[:2] + struct.pack("!5H", 0x8180, 1, *counts)
    return head + asked[12:] + b"".join(each for section in sections for each in section)


THERE, OTHER = ip_address("203.0.113.1").packed, "news.example"
OWN_RECORD = record(OTHER, 1, THERE)


@pytest.mark.parametrize(
    "stray",
    [
        record(HOST, 1, THERE),
        record(HOST, 28, bytes(15) + b"\1"),
        record(HOST, 5, encoded("evil.example")),
        record(HOST, 33, bytes(6) + encoded("evil.example")),
        record(HOST, 65, b"\0\1\0" + b"\0\4\0\4" + THERE),
    ],
)
async def test_an_answers_records_of_names_that_it_does_not_lead_to_are_told(watch, stray):
    """Drop it if one is ruled: systemd-resolved keeps these, and never asks for the name itself."""
    odd = record(OTHER, 16, b"\1x").replace(b"\4news", b"\4n\xffws", 1)
    longest = [record(f"{each}.example", 5, encoded(f"{each + 1}.example")) for each in range(18)]
    for number, others in enumerate(([], [odd], longest)):
        watch.asks(OTHER)
        told = watch.comes(number, answer_with(OTHER, [OWN_RECORD, *others, stray]))
        assert HOST in {each.name for each in told.mistaken}
    watch.asks(OTHER)
    assert HOST in {
        each.name for each in watch.comes(9, answer_with(OTHER, [stray]), STRANGER).mistaken
    }
    watch.asks(OTHER)
    assert not watch.comes(10, answer_with(OTHER, [OWN_RECORD])).mistaken


@pytest.mark.parametrize("section", [1, 2])
async def test_what_stands_behind_the_answers_of_a_message_counts_for_its_owner(watch, section):
    """Believe or confirm it: systemd-resolved takes the records of a name from all sections."""
    sections = [[], [], []]
    sections[section] = [record(HOST, 1, THERE), record("ns.example", 1, THERE)]
    watch.asks()
    told = watch.comes(1, answer_with(HOST, *sections))
    found = {each.name: each.addresses for each in told.believed if each.addresses}
    assert found == dict.fromkeys((HOST, "ns.example"), (ip_address(THERE),))
    assert (told.claimed, told.mistaken) == ((), ())
    assert {
        each.name for each in watch.comes(2, answer_with(HOST, *sections), STRANGER).claimed
    } == {*(HOST, "ns.example")}
    sections[section] = [record(HOST, 5, encoded("evil.example"))]
    watch.asks()
    told = watch.comes(3, answer_with(HOST, *sections))
    assert ("evil.example",) in {each.aliases for each in told.believed}
    # What comes before there is a rule counts for a later one.
    key = FlowKey(LOCAL, 4000, OWN, 53, "udp")
    watch.on_captured(CapturedPacket(key, False, answer_with(HOST, *sections)))
    assert ("evil.example",) in {each.aliases for each in watch.posted[-1].believed}


async def test_what_a_dname_leads_elsewhere_is_told(watch, monkeypatch):
    """Drop it if a ruled name is below: systemd-resolved needs no CNAME, and keeps it for all of them."""
    monkeypatch.setattr(resolvers, "_named", OrderedDict())  # other tests have search domains
    for number, section in enumerate((0, 1, 2)):
        sections = [[], [], []]
        sections[section] = [record("example", dns.DNAME, encoded("evil.test"))]
        watch.asks(OTHER)
        told = watch.comes(number, answer_with(OTHER, *sections))
        assert ("example", dns.DNAME) in {(each.name, each.kind) for each in told.mistaken}
        assert OTHER in {each.name for each in told.mistaken}
    assert "" not in {each.name for each in told.mistaken}
    monkeypatch.setattr(resolvers, "search_domains", lambda: frozenset({"lan.example"}))
    watch.asks(OTHER)
    told = watch.comes(3, answer_with(OTHER, *sections))
    assert "" in {each.name for each in told.mistaken}, "any name may be asked for below it"


async def test_an_answer_whose_names_cannot_all_be_known_reaches_no_program(watch):
    """Drop it: a resolver may find the name of a rule where the reader gives up."""
    jumps = b"".join(bytes((0xC0, 0x1D + 24 + each * 2)) for each in range(20))
    hidden = record(OTHER, 16, b"\xc0\x0c" + jumps)
    many = [record(f"n{each}.example", 1, THERE) for each in range(300)]
    at = len(answer_with(OTHER, [hidden])) - 2
    deep = struct.pack("!H", 0xC000 | at) + record("x", 1, THERE)[3:]
    for number, records in enumerate(
        ([hidden, deep], many, [b"\xc0\x0c" + record("", 1, THERE)[1:]] * 4090)
    ):
        watch.asks(OTHER)
        assert watch.comes(number, answer_with(OTHER, records)) is None
        assert watch.passed.pop(number) is False


async def test_a_referral_to_a_stub_is_told_without_the_addresses_of_servers(watch, monkeypatch):
    """Keep them out: any server may name addresses for any name, and a stub believes few of them."""
    monkeypatch.setattr(watch, "_is_for_a_stub", lambda _: True)
    key = FlowKey(LOCAL, 4000, STRANGER, 53, "udp")
    watch.asks(OTHER, key=key)
    servers = [record(OTHER, 2, encoded(HOST))], [record(HOST, 1, THERE)]
    told = watch.comes(1, answer_with(OTHER, [], *servers), STRANGER)
    assert [each.name for each in told.relayed] == [OTHER]
    assert (told.believed, told.claimed, told.mistaken) == ((), (), ())
    # To what the answer leads the stub believes.
    watch.asks(OTHER, key=key)
    chain = [record(OTHER, 5, encoded(HOST)), record(HOST, 1, THERE)]
    for number, sections in enumerate(((chain,), (chain[:1], [], chain[1:])), 2):
        told = watch.comes(number, answer_with(OTHER, *sections), STRANGER)
        assert {each.name: each.addresses for each in told.claimed} == {HOST: (ip_address(THERE),)}


async def test_what_cannot_be_read_is_told_with_the_name_that_was_asked_for(watch):
    """Let it pass if no rule is for that: all parts of a zone transfer but the first were dropped.

    So were answers that were cut within a record, and those about names of services in UTF-8.
    """
    whole, zone = answer("zone.example", "203.0.113.1"), b"\0\7\x84\0\0\0\0\1\0\0\0\0"
    key = FlowKey(LOCAL, 4000, OWN, 53, "tcp")
    watch.asks("zone.example", key=key)
    part = zone + b"\4zone\7example\0" + whole[-14:]
    (told,) = watch.comes_by_tcp(1, 100, struct.pack("!H", len(part)) + part)
    assert told == AnswersRead(1, (), (), (DnsReply(7, 0, False, "zone.example", dns.A),))
    watch.asks("zone.example")
    assert watch.comes(2, whole[:2] + b"\x83\x80" + whole[4:-1]).mistaken == told.mistaken
    head = whole[:2] + b"\x81\x80\0\1" + (4000).to_bytes(2) + bytes(4)
    many = head + whole[12:-16] + whole[-16:] * 4000
    assert watch.comes(3, many) is None, "what it has of other names is too much to read"
    assert watch.passed.pop(3) is False
    odd = dns.question(7, "x.zone.example").replace(b"\1x", b"\2\xc3\xbc")
    watch.on_captured(CapturedPacket(FlowKey(LOCAL, 4000, OWN, 53, "udp"), True, odd))
    content = odd[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + odd[12:] + whole[-16:]
    assert [each.name for each in watch.comes(4, content).mistaken] == ["\xe3\xbc.zone.example"]
    assert watch.passed == {}


async def test_a_name_in_a_search_domain_counts_for_what_was_asked_for(
    watch, monkeypatch, tmp_path
):
    """Count it: a network's resolver denied a ruled name, and answered in the domain that it named."""
    file = tmp_path / "resolv.conf"
    file.write_text("search other.example Evil.Example.\n")
    monkeypatch.setattr(resolvers, "search_domains", lambda: search_domains(file))
    watch.asks(f"{HOST}.evil.example")
    told = watch.comes(1, answer(f"{HOST}.evil.example", "203.0.113.1"))
    assert [each.name for each in told.believed] == [f"{HOST}.evil.example", HOST]
    assert told.believed[0].addresses == told.believed[1].addresses


async def test_a_search_domain_of_an_earlier_lease_counts_too(watch, monkeypatch, tmp_path):
    """Count it: a network holds an answer back until its next lease has named another domain."""
    file = tmp_path / "resolv.conf"
    monkeypatch.setattr(resolvers, "search_domains", lambda: search_domains(file))
    host = HostResolvers(None, file)
    noticed = []
    await host.start(lambda: noticed.append(file.read_text()))
    for content in ("search one.lease\n", "search two.lease\n", ""):
        file.write_text(content)
        await until(lambda content=content: content in noticed)
    await host.close()
    watch.asks(f"{HOST}.one.lease")
    told = watch.comes(1, answer(f"{HOST}.one.lease", "203.0.113.1"))
    assert [each.name for each in told.believed] == [f"{HOST}.one.lease", HOST]


async def test_what_a_stub_on_loopback_asks_itself_is_told_as_such(watch, monkeypatch, tmp_path):
    """Have it wait: programs may ask a stub by other means than packets (nss-resolve).

    Servers' own answers have addresses that no look-up of ours confirms.
    """
    file = tmp_path / "resolv.conf"
    file.write_text("nameserver 127.0.0.53\n")
    monkeypatch.setattr(answers, "RESOLV_CONF", file)
    users = {53: 101, 4000: 101}
    monkeypatch.setattr(
        SocketOwners, "find", lambda _, __, program, *_a, **_k: SocketOwner(1, users[program[1]])
    )
    content, key = answer(HOST, "203.0.113.1"), FlowKey(LOCAL, 4000, STRANGER, 53, "udp")
    assert watch.comes(5, content, STRANGER).claimed, "it has not asked"
    watch.asks(key=key)
    told = watch.comes(1, content, STRANGER)
    assert told == AnswersRead(1, (), relayed=(dns.parse(content),), user=101)
    watch.on_captured(CapturedPacket(key, False, content))
    assert watch.posted[-1].relayed, "before there is a rule"
    users[4000] = 1000
    assert watch.comes(2, content, STRANGER).claimed
    count = len(watch.posted)
    watch.on_captured(CapturedPacket(key, False, content))
    assert len(watch.posted) == count
    users |= {53: 0, 4000: 0}
    assert watch.comes(4, content, STRANGER).claimed, "any program of root's"
    users |= {53: 101, 4000: 101}
    watch.asks()
    assert watch.comes(3, content).believed, "it asks a resolver of this host"


async def test_a_segment_that_says_something_else_than_before_is_dropped(watch):
    """Know what the kernel may do: it takes the second one if the first had an old timestamp."""
    first, second = (
        struct.pack("!H", len(each)) + each
        for each in (answer(HOST, "203.0.113.1"), answer(HOST, "203.0.113.2"))
    )
    (told,) = watch.comes_by_tcp(1, 100, first)
    watch.release(told.number, passes=True)
    assert watch.comes_by_tcp(2, 100, second) == []
    assert watch.comes_by_tcp(3, 110, second[10:] + b"more") == []
    assert watch.comes_by_tcp(4, 90, bytes(10) + first) == [], "it begins before what was read"
    assert watch.comes_by_tcp(5, 100, first) == [], "the same passes again"
    assert watch.passed == {1: True, 2: False, 3: False, 4: False, 5: True}


async def test_a_stream_begins_only_behind_what_opens_it(watch, monkeypatch):
    """A segment that began a byte before, which the kernel cuts off, made all its answers pass unread."""
    content = answer(HOST, "203.0.113.1")
    content = struct.pack("!H", len(content)) + content
    opens = 0x12
    monkeypatch.setattr(SocketOwners, "find", lambda *_, **__: SocketOwner(1, 1000))
    assert watch.comes_by_tcp(1, 99, b"", opens) == []
    assert watch.comes_by_tcp(2, 99, b"\xff" + content) == []
    assert watch.comes_by_tcp(3, 98, b"", opens) == [], "it opens the same connection elsewhere"
    assert watch.comes_by_tcp(4, 99, b"x", opens) == [], "the kernel takes no payload of it"
    assert watch.comes_by_tcp(5, 99, b"", opens) == [], "it is sent again"
    assert watch.comes_by_tcp(6, 100, b"") == []
    (told,) = watch.comes_by_tcp(7, 100, content)
    watch.release(told.number, passes=True)
    assert watch.passed == {1: True, 2: False, 3: False, 4: False, 5: True, 6: True, 7: True}
    # The port is another connection's.
    monkeypatch.setattr(SocketOwners, "find", lambda *_, **__: SocketOwner(2, 1000))
    assert watch.comes_by_tcp(8, 40, b"", opens) == []
    assert len(watch.comes_by_tcp(9, 41, content)) == 1


async def test_the_middle_of_a_stream_whose_beginning_was_not_seen_reaches_no_program(watch):
    """Its next message's length may have come before: then the message passed unread.

    The daemon was restarted meanwhile, or a user's 64 connections made it forget those of others.
    """
    watch._opened_by_tcp = True
    assert watch.comes_by_tcp(1, 100, b"\x9a\x51" + answer(HOST, "203.0.113.1")[2:]) == []
    assert watch.passed == {1: False}


async def test_a_verdict_on_an_earlier_queue_decides_nothing_in_a_later_one(watch):
    """Know the queue: each one counts its packets from 1.

    A member who removed and added a rule had others' answers decided. Or the daemon decided an answer
    that waited no more, and lost the commands that came with it.
    """
    content = answer(HOST, "203.0.113.1")
    before = watch.comes(1, content)
    watch._let_go()
    after = watch.comes(1, content)
    watch.release(before.number, passes=True)
    assert watch.passed == {}
    watch.release(after.number, passes=False)
    watch.release(after.number, passes=True)
    assert watch.passed == {1: False}


async def test_an_own_look_up_that_has_ended_leaves_its_port_to_programs(watch):
    """A program whose look-up had the port of one of the last 1,024 own ones got round the rules."""
    content = answer(HOST, "203.0.113.1")
    resolver = ip_address("127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        assert flow_source.connect(own, resolver, 53)
        near, port = own.getsockname()
        key = FlowKey(ip_address(near), port, resolver, 53, "udp")
        held = QueuedPacket(1, datagram(key, content))
        watch.asks(key=key)
        watch._take([held])
        assert watch.posted == []
        assert watch.passed == {1: True}
    watch.asks(key=key)
    watch._take([held._replace(number=2)])
    assert watch.passed == {1: True}
    (told,) = watch.posted
    assert [each.name for each in (*told.believed, *told.claimed)] == [HOST]


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_an_answer_on_its_way_is_told_if_it_was_asked_for(watch, protocol):
    content = answer(HOST, "198.18.0.1")
    key = FlowKey(LOCAL, 4000, OWN, 53, protocol)
    if protocol == "tcp":
        content = struct.pack("!H", len(content)) + content
    watch.on_captured(CapturedPacket(key, False, content))
    assert watch.posted == []
    watch.asks(key=key)
    # An answer that hit the port has not hit the number by that, nor the question.
    at = content.index(b"\7updates") - 12
    other = content.replace(b"updates", b"Updated")
    for forged in (content[:at] + b"\0\x08" + content[at + 2 :], other):
        watch.on_captured(CapturedPacket(key, False, forged, segment=100))
        assert watch.posted == []
    key = replace(key, local_port=4001)
    watch.asks(key=key)
    watch.on_captured(CapturedPacket(key, False, content))
    (told,) = watch.posted
    assert isinstance(told, AnswersRead)
    assert (told.number, told.user) == (None, watch._group_of(key)), "who asked has a share"
    assert [each.name for each in told.believed] == [HOST]


def test_many_answers_to_no_question_are_read_one_after_the_other(watch):
    """Each had the next one read within it: a neighbour's 25,000 a second ended in RecursionError.

    The daemon wrote 275 kB of log a second meanwhile, and answered nothing for five seconds.
    """
    key = FlowKey(LOCAL, 4000, OWN, 53, "udp")
    watch.captured = [CapturedPacket(key, False, answer(HOST, "198.18.0.1"))] * 2_000
    watch.on_captured(watch.captured[0])
    watch.on_look()
    assert watch.posted == []


async def test_a_dropped_segment_is_read_again_when_it_comes_again(watch):
    content = answer(HOST, "203.0.113.1")
    content = struct.pack("!H", len(content)) + content
    assert watch.comes_by_tcp(1, 100, content[:20]) == []
    assert len(watch.comes_by_tcp(2, 120, content[20:])) == 1
    assert watch.comes_by_tcp(3, 120, content[20:]) == [], "its first copy waits"
    assert watch.passed == {1: True, 3: False}
    watch.release(2, passes=False)
    assert len(watch.comes_by_tcp(4, 120, content[20:])) == 1
    watch.release(4, passes=True)
    assert watch.passed == {1: True, 2: False, 3: False, 4: True}
    # The second one of two is dropped after the first one, which must not pass unread for that.
    at = 100 + len(content)
    told = [
        *watch.comes_by_tcp(10, at, content),
        *watch.comes_by_tcp(11, at + len(content), content),
    ]
    for each in told:
        watch.release(each.number, passes=False)
    assert len(watch.comes_by_tcp(12, at, content)) == 1
    watch.release(12, passes=False)
    assert {watch.passed.pop(number) for number in (10, 11, 12)} == {False}
    # So is one that waited in a queue that has gone.
    (told,) = watch.comes_by_tcp(5, 100 + len(content), content)
    watch._let_go()
    assert len(watch.comes_by_tcp(1, 100 + len(content), content)) == 1
    watch.release(told.number, passes=True)
    assert len(watch.passed) == 4


async def test_a_segment_of_many_messages_is_dropped_until_it_comes_in_parts(watch):
    """A user whose server sent 2,400 in each kept the daemon from all else for 7 to 9 s at a time."""
    content = answer(HOST, "203.0.113.1")
    content = struct.pack("!H", len(content)) + content
    assert watch.comes_by_tcp(1, 100, content * 65) == []
    assert watch.passed == {1: False}
    (told,) = watch.comes_by_tcp(2, 100, content * 20)
    assert len(told.believed) == 20
    watch.release(2, passes=True)
    (told,) = watch.comes_by_tcp(3, 100 + 20 * len(content), content * 45)
    assert len(told.believed) == 45


async def test_a_users_flood_of_answers_leaves_other_users_theirs(watch, monkeypatch):
    """One queue for all had 20,000 look-ups a second of a stub deny those of all other users."""
    users = {4000: 1000, 4001: 1001}
    monkeypatch.setattr(
        SocketOwners, "find", lambda _, __, program, *_a, **_k: SocketOwner(1, users[program[1]])
    )
    flood = [FlowKey(LOCAL, 4000, OWN, 53, "udp")] * 200
    content = answer("other.example", "203.0.113.1")
    keys = [*flood, FlowKey(LOCAL, 4001, OWN, 53, "udp"), *flood]
    watch._take(QueuedPacket(number, datagram(key, content)) for number, key in enumerate(keys))
    assert 200 in [told.number for told in watch.posted], "in the first turn"
    assert list(watch.passed) == [*range(64, 200), *range(201, 401)]
    assert not any(watch.passed.values())
    # The others come in later turns, some in each.
    async with counting_turns() as turns:
        await until(lambda: len(watch.posted) == 65, every_s=0.0)
        assert turns() >= 6


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
async def test_a_users_flood_of_questions_hides_none_of_other_users(watch, monkeypatch, protocol):
    """One table for all forgot them after 64 packets of TCP: their answers passed as a VPN's."""
    users = {4000: 1000, 4001: 1001}
    monkeypatch.setattr(
        SocketOwners, "find", lambda _, __, program, *_a, **_k: SocketOwner(1, users[program[1]])
    )
    mine, flood = (FlowKey(LOCAL, port, OWN, 53, protocol) for port in users)
    watch.asks(key=mine)
    for number in range(1, 5_000):
        question = dns.question(number, "other.example")
        if protocol == "tcp":
            question = struct.pack("!H", len(question)) + question
        at = (number - 1) * len(question)
        watch.on_captured(CapturedPacket(flood, True, question, segment=at))
    for number in range(100):  # the beginnings of streams have shares, too
        users[5000 + number] = 1001
        watch.asks(key=replace(flood, local_port=5000 + number))
    assert watch._asked_for(mine, dns.parse(answer(HOST, "203.0.113.1")))
    assert protocol == "udp" or watch._asked.reading(mine) is not None


@pytest.mark.parametrize(("owner", "dropped"), [(UNKNOWN, 0), (None, 36)])
async def test_without_socket_diagnostics_programs_share_the_room_of_all(
    watch, monkeypatch, owner, dropped
):
    """Know no owner: all programs had the room of one user. Packets for no socket still have it."""
    monkeypatch.setattr(SocketOwners, "find", lambda *_, **__: owner)
    content = datagram(FlowKey(LOCAL, 4000, OWN, 53, "udp"), answer(HOST, "203.0.113.1"))
    watch._take(QueuedPacket(number, content) for number in range(100))
    assert list(watch.passed.values()) == [False] * dropped
    assert {told.user == UNKNOWN_USER for told in watch.posted} == {owner is UNKNOWN}


async def test_answers_are_not_judged_before_their_questions_are_read(watch):
    """Wait for a backlog of questions: an answer to one of them would be called a claim."""
    key = FlowKey(LOCAL, 4000, OWN, 53, "udp")
    watch.behind = 3
    watch._take([QueuedPacket(1, datagram(key, answer(HOST, "203.0.113.1")))])
    assert watch.posted == []
    watch.captured = [CapturedPacket(key, True, dns.question(7, HOST))]
    await until(lambda: watch.posted)
    assert [each.name for each in watch.posted[0].believed] == [HOST]


async def test_parsing_answers_leaves_the_loop_its_other_work(watch, monkeypatch):
    """Parse for a few ms in each turn, however long one takes."""
    key = FlowKey(LOCAL, 4000, OWN, 53, "udp")
    content = datagram(key, answer(HOST, "203.0.113.1"))
    watch._post = lambda event: (time.sleep(0.006), watch.posted.append(event))
    watch._take(QueuedPacket(number, content) for number in range(8))
    assert len(watch.posted) == 1
    async with counting_turns() as turns:
        await until(lambda: len(watch.posted) == 8, every_s=0.0)
        assert turns() >= 6


async def test_answers_are_read_although_a_look_fails(watch, monkeypatch):
    """Read them: the failure of one look for a user left all later answers of the host unread."""
    key = FlowKey(LOCAL, 4000, OWN, 53, "udp")
    content = datagram(key, answer("other.example", "203.0.113.1"))

    def find(*_, **__):
        raise OSError("no files are left")

    def packets():
        yield QueuedPacket(1, content)
        raise CedosError("the queue broke")

    monkeypatch.setattr(SocketOwners, "find", find)
    with pytest.raises(CedosError):
        watch._take(packets())
    await until(lambda: not watch._unread)
    watch._take([QueuedPacket(2, content)])
    await until(lambda: len(watch.posted) == 2)


async def test_unread_answers_pass_when_the_daemon_ends(watch):
    key = FlowKey(LOCAL, 4000, OWN, 53, "udp")
    content = datagram(key, answer("other.example", "203.0.113.1"))
    watch._take(QueuedPacket(number, content) for number in range(20))
    assert watch._unread
    running = asyncio.ensure_future(watch.run())
    await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert [watch.passed.get(number) for number in range(20)] == [True] * 20


async def test_resolvers_are_asked_one_after_the_other(watch, monkeypatch):
    asked = []

    async def ask(network, resolver, question):
        asked.append(resolver)
        name = dns.read_question(question)
        if resolver != OWN or name is None or name[1] != dns.A:
            return None
        return answer(HOST, "203.0.113.7")

    monkeypatch.setattr(answers, "ask", ask)
    away = ("lte0", STRANGER)
    await watch._look_up(LookUpName(HOST, (away, ("wlan0", STRANGER), ("wlan0", OWN))))
    (told,) = watch.posted
    assert isinstance(told, NameLookedUp)
    assert list(told.told) == [4]
    assert [str(each) for each in told.told[4].addresses] == ["203.0.113.7"]
    assert sorted(map(str, set(asked))) == [str(OWN), str(STRANGER)], "lte0 is gone"
