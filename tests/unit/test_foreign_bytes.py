"""Every parser of bytes that others send, fed with what nobody should send.

A parser answers, or refuses by the errors that it names; it takes a time that is linear in the input, and
keeps nothing. Inputs are mutations of right ones, and structures with random content: a thousand for each
parser, 300,000 with `--long`: fourteen million in all. There atheris looks for more, guided by what code
they reach (`fuzz_foreign_bytes.py`).
"""

import contextlib
import gc
import logging
import random
import re
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path

import msgspec
import pytest
from kit.neighbours import GATEWAY, START_S, identity, key_of, trust

from cedos.api import messages as api
from cedos.api.budgets import parse_budget
from cedos.api.programs import ChoiceRequest
from cedos.api.transfers import TransferReport
from cedos.apps.files import messages as files
from cedos.apps.files.objects.http_rules import conditions, confirmed_fields, is_fresh, kept_fields
from cedos.apps.files.objects.stored_object import ObjectRecord
from cedos.apps.sharing.protocol.certificates import (
    CertificateAuthority,
    UntrustedError,
    request_certificate,
)
from cedos.apps.sharing.protocol.messages import InviteMessage, pack
from cedos.apps.sharing.protocol.messages import unpack as neighbours_datagram
from cedos.apps.sharing.protocol.receipts import Receipt, read_receipt, sign_receipt
from cedos.config import Config
from cedos.config.toml_file import parse as parse_toml
from cedos.controller.hint import HintRequest, PrefetchReport
from cedos.controller.rule import RuleRequest
from cedos.errors import ConfigError, ProtocolError, TransferError
from cedos.host.monitor import dns_message as dns
from cedos.host.monitor.portal_check import TestPage, judge
from cedos.host.monitor.probing import ping
from cedos.host.monitor.providers import access_points, wifi
from cedos.host.monitor.providers.access_points import says_metered
from cedos.host.monitor.resolvers import parse_resolv_conf
from cedos.host.privileged import wire as privileged_wire
from cedos.host.profiler.frame import parse_frame
from cedos.host.profiler.profiler import Profiler
from cedos.host.steer.journal_records import read_records
from cedos.host.steer.kernel import egress_wall
from cedos.host.steer.kernel.interface import FilterPlan
from cedos.host.steer.kernel.linux import takes_from_ours
from cedos.host.steer.kernel.routing_requests import parse_rule
from cedos.kernel import conntrack, mptcp, netlink, policy_routing, rtnetlink, sock_diag
from cedos.kernel.generic_netlink import parse_family
from cedos.kernel.interface_kind import announced_metered
from cedos.kernel.mptcp import PathManagerCommand
from cedos.kernel.netlink import NetlinkMessage, attribute
from cedos.kernel.policy_routing import Rule
from cedos.kernel.privileges import EventSocket
from cedos.kernel.tcp_info import read_info
from cedos.model import FlowKey
from cedos.proxy import names
from cedos.proxy.http import RefusedError, RequestBody, RequestParser, authority
from cedos.proxy.local import joined_gateway
from cedos.proxy.local.socks import SocksError, SocksParser
from cedos.proxy.streams import frames as streams
from cedos.session import keys
from cedos.session.protocol.handshake import messages as handshake
from cedos.session.protocol.unpacking import unpack
from emu import ROOT

SEED = 16
KEY = b"k" * 32
PAGE = TestPage.of("http://portal.test/nm", "all is well")
# Of a processor, for the longest input: a thousand times what it takes. (By the clock, others who wait
# for the machine made single inputs of 30 bytes take as long.)
SECONDS = 0.25

HTTP = b"GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello"
DNS = bytes.fromhex(
    "abcd818000010001000000000161047465737400000100010161047465737400000100010000003c0004c0000201"
)
QUESTION = bytes.fromhex("abcd0100000100000000000101610474657374000001000100002904d0000000000000")
CACHED = (
    b'cache-control: max-age=600, private="a", no-cache\r\nage: 7\r\netag: W/"a"\r\nvary: accept, *',
    b"date: Tue, 24 Nov 2026 10:00:00 GMT\r\nexpires: 0\r\nlast-modified: Tue, 24 Nov 2026 09:00:00 GMT",
)
RECEIPT = Receipt(
    GATEWAY.public, 1, KEY, KEY, bytes(32), 1_800_000_000, 1_800_000_010, 100, 200, 300, 5, "EUR"
)
HELLO = bytes.fromhex(
    "160301003a0100003603030000000000000000000000000000000000000000000000000000000000000000"
    "000002130101000b00000007000500000261620000"
)


@dataclass(frozen=True)
class Parser:
    """`right`: inputs that it takes; `refusals`: what it may raise."""

    call: Callable[[bytes], object]
    right: tuple[bytes, ...]
    refusals: tuple[type[Exception], ...] = ()


def of_message(parse, *kinds):
    """A parser of netlink messages as one of bytes: the first says which kind it is."""
    return lambda data: parse(
        NetlinkMessage(kinds[data[0] % len(kinds)] if data else 0, 0, 0, data[1:])
    )


def attributes(chance, depth=2):
    parts = []
    for _ in range(chance.randrange(8)):
        inside = chance.randbytes(chance.choice((0, 1, 2, 4, 4, 4, 8, 16, 40)))
        if depth and chance.random() < 0.3:
            inside = attributes(chance, depth - 1)
        parts.append(attribute(chance.randrange(48), inside))
    return b"".join(parts)


def cached(data):
    """An origin's headers: of an answer, of what is kept, and of the word that it is still good."""
    headers = {"date": ["Tue, 24 Nov 2026 10:00:00 GMT"]}
    for line in data.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name:
            headers.setdefault(name.lower(), []).append(value.strip())
    kept = ObjectRecord("1", "http://a.test/", "v", kept_fields(headers), True, 1e9, 3)
    is_fresh(kept, 1e9)
    conditions(kept)
    confirmed_fields(kept, headers)


def packet(protocol, payload):
    transport = struct.pack("!HHIIBBHHH", 40_000, 443, 1, 1, 5 << 4, 24, 100, 0, 0)
    if protocol == 17:
        transport = struct.pack("!HHHH", 40_000, 443, 8 + len(payload), 0)
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(transport) + len(payload), 0, 0, 64,
                       protocol, 0, bytes((192, 0, 2, 1)), bytes((198, 51, 100, 1)))  # fmt: skip
    return head + transport + payload


def profiled(data):
    """Handle a captured packet, from its IP header on, as a daemon does, with a new profiler."""
    profiler = Profiler()
    for outgoing in (True, False):
        if (captured := parse_frame(data, outgoing=outgoing)) is not None:
            profiler.observe(captured, 1.0)


def proxied(data):
    with contextlib.suppress(ValueError):
        RequestBody(None).take(data)
    RequestParser().feed(data)


def leased(folder):
    def read(data):
        (folder / "3").write_bytes(data)
        (folder / "dhclient.leases").write_bytes(data)
        announced_metered("wlan0", 3, networkd=folder, dhclient=folder)

    return read


def text(parse):
    return lambda data: parse(data.decode("utf-8", "replace"))


def commanded(data):
    """Parse a message as the privileged part does; an attacker may control the daemon that sent it."""
    said = msgspec.msgpack.decode(data)
    for kind in (tuple[Rule, ...], FlowKey, PathManagerCommand, FilterPlan, EventSocket):
        with contextlib.suppress(ValueError):
            privileged_wire.from_plain(kind, said)


def asked_name(data):
    """Parse a datagram as the stub does, and as a resolver's answer."""
    if (question := names.read(data)) is not None:
        names.truncate(data, question)
        names.servfail(data, question)
        names.answers(data, question, question.number)


def said_of_files(data):
    """Parse a message as a server of files and as its client."""
    for kind in (files.AnyRequest, files.Answer, files.Listing, files.PutAnswer, list[files.Entry]):
        _tried(lambda given, kind=kind: files.decode(given, kind), data, TransferError)


def in_a_file(read):
    """A parser that opens its file by itself."""

    def of(folder):
        file = folder / "given"

        def call(data):
            file.write_bytes(data)
            read(file)

        return call

    return of


def authority_of(data):
    authority(data.decode("latin-1"))


NETLINK = (bytes(1) + bytes(16), bytes(1) + bytes(72), bytes(1) + bytes(12))
JSON = (b'{"port": 443, "size_bytes": 1000}', b'{"destination": "198.51.100.0/24"}', b"{}")

PARSERS = {
    "netlink datagrams": Parser(
        lambda data: [netlink.attributes(each.payload, 4) for each in netlink.messages(data)],
        (netlink.message(16, 0, 1, bytes(16) + attribute(3, b"wlan0\0")),),
    ),
    "links": Parser(of_message(rtnetlink.parse_link, 16, 17), NETLINK),
    "addresses": Parser(of_message(rtnetlink.parse_address, 20, 21), NETLINK),
    "counters": Parser(of_message(rtnetlink.parse_counters, 16), NETLINK),
    "routes": Parser(of_message(policy_routing.parse_route, 24, 25), NETLINK),
    "default routes": Parser(of_message(policy_routing.parse_default_routes, 24, 25), NETLINK),
    "filters at interfaces": Parser(of_message(egress_wall.takes_out, 36, 37, 45), NETLINK),
    "rules": Parser(of_message(parse_rule, 32), NETLINK),
    "an origin's headers": Parser(cached, CACHED),
    "connection tracking": Parser(of_message(conntrack.parse, 256, 258), NETLINK),
    "sockets": Parser(of_message(partial(sock_diag.parse, at_s=0.0), 20), NETLINK),
    "TCP sockets": Parser(of_message(sock_diag.parse_tcp_socket, 20), NETLINK),
    "connecting sockets": Parser(of_message(sock_diag.parse_connecting, 20), NETLINK),
    "nf_tables": Parser(of_message(takes_from_ours, 2562, 2565, 2568), NETLINK),
    "generic netlink families": Parser(of_message(parse_family, 16), NETLINK),
    "MPTCP events": Parser(
        lambda data: list(mptcp.mptcp_events(data)),
        (netlink.message(30, 0, 0, bytes((1, 1, 0, 0)) + attribute(1, bytes(4))),),
    ),
    "tcp_info": Parser(read_info, (bytes(240), bytes(104))),
    "Wi-Fi stations": Parser(
        lambda data: (wifi.parse_stations([data]), wifi.parse_survey([data]), wifi.parse_bssid([data])),
        (attribute(21, attribute(7, b"\xc4")),),
    ),
    "what access points announce": Parser(
        says_metered, (bytes.fromhex("000161dd080050f211020000006b0112dd07506f9a10140000"),)
    ),
    "Wi-Fi scans": Parser(access_points.parse, (attribute(47, attribute(1, bytes(6))),)),
    "captured packets": Parser(
        profiled, (packet(6, HTTP), packet(6, ANSWER), packet(6, HELLO), packet(17, b"\xc0" + bytes(60)))
    ),
    "DNS replies": Parser(dns.parse, (DNS,)),
    "DNS questions": Parser(dns.read_question, (dns.question(7, "a.test"),)),
    "commands to the privileged part": Parser(
        commanded,
        (
            msgspec.msgpack.encode([["Rule", 4, 32090, 7_300_003, None, None, None, False]]),
            msgspec.msgpack.encode(["FlowKey", "192.0.2.1", 1, "2001:db8::1", 53, "udp"]),
        ),
        (ValueError, RecursionError),
    ),
    "resolv.conf": Parser(text(parse_resolv_conf), (b"nameserver 192.0.2.1\n", b"nameserver fe80::1%x")),
    "portal answers": Parser(
        lambda data: judge(PAGE, data), (ANSWER, b"HTTP/1.1 302 F\r\nLocation: http://x/\r\n\r\n")
    ),
    "ping replies": Parser(
        lambda data: [ping.parse_reply(v, data, with_header=h) for v in (4, 6) for h in (0, 1)],
        (packet(1, bytes(24)), bytes(16)),
    ),
    "requests and answers of files": Parser(
        said_of_files,
        (
            b'{"ask":"file","path":"a/b","have":5,"version":"v"}',
            b'{"ask":"put","path":"a","size":5,"version":"v","modified_unix_s":0.0}',
            b'{"ask":"put","path":"http://a/","size":5,"version":"v","web":{"id":"0123456789abcdef0123456789'
            b'abcdef","headers":[["A","b"]],"keep_s":5.0}}',
            b'{"start":5,"web":{"status":201,"reason":"a","headers":[["A","b"]],"body":"YQ=="}}',
            b'{"size":5,"start":0,"version":"v","modified_unix_s":1e9,"refused":""}',
            b'[{"name":"a","folder":false,"size":5}]',
        ),
    ),
    "reports of transfers": Parser(
        lambda data: api.parse(data, TransferReport, "transfer"),
        (b'{"key":"k","name":"n","server":"s","deadline_unix_s":2e9,"used_bytes":{"wlan0":5}}',),
        (ConfigError,),
    ),
    "known servers and clients": Parser(
        lambda data: None, (b'[hosts]\n"a.test" = "' + keys.to_text(KEY).encode() + b'"\n',),
        (ConfigError,),
    ),
    "leases": Parser(
        lambda data: None, (b"VENDOR_SPECIFIC=414e\n", b'lease {\n  interface "wlan0";\n}\n')
    ),
    "journals": Parser(
        read_records, (b'{"undo":"sysctl","key":"net.mptcp.pm_type","before":"0","after":"1"}\n',)
    ),
    "hints": Parser(lambda data: api.parse(data, HintRequest, "hint"), JSON, (ConfigError,)),
    "users' rules": Parser(lambda data: api.parse(data, RuleRequest, "rule"), JSON, (ConfigError,)),
    "choices": Parser(lambda data: api.parse(data, ChoiceRequest, "choice"), JSON, (ConfigError,)),
    "prefetching": Parser(
        lambda data: api.parse(data, PrefetchReport, "prefetching"), JSON, (ConfigError,)
    ),
    "budgets": Parser(
        parse_budget,
        (b'{"name": "a", "resource": "data", "supply": 1e9, "until": "2099-01-01T00:00:00"}',),
        (ConfigError,),
    ),
    "configuration": Parser(
        text(lambda given: parse_toml(given, Config, name="c.toml")),
        (b'[decision]\nobjective = "max-s"\n', b'[networks.a]\nkind = "wifi"\n'),
        (ConfigError,),
    ),
    "proxy requests": Parser(
        proxied, (b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n", HTTP), (RefusedError,)
    ),
    "frames of streams": Parser(
        streams.parse,
        (
            streams.OpenStream(1, "a.test", 443).pack(),
            streams.OpenStream(1, "a.test", 80).pack(),
            streams.StreamBytes(1, 7, b"some").pack(),
            streams.StreamRefused(1, HTTPStatus.BAD_GATEWAY, "dns_error", "no").pack(),
            streams.StreamWindow(1, 9).pack(),
            streams.OpenAssociation(1).pack(),
        ),
        (ValueError,),
    ),
    "packets of programs": Parser(
        streams.parse_packet,
        (
            streams.ProgramPacket(1, "a.test", 53, b"some").pack(),
            streams.UndeliveredPacket(1, "192.0.2.1", 53, streams.Obstacle.REFUSED).pack(),
            streams.GatewayQuestion(1, DNS).pack(),
            streams.GatewayAnswer(1, DNS).pack(),
        ),
        (ValueError,),
    ),
    "datagrams of neighbours": Parser(
        lambda data: neighbours_datagram(data).verify_sender(trust(), START_S),
        (pack(identity("ann"), InviteMessage(1, bytes(16), 1)),),
        (UntrustedError,),
    ),
    "certificates of neighbours": Parser(
        lambda data: trust().read(data, START_S), (identity("ann").certificate,), (UntrustedError,)
    ),
    "requests for certificates": Parser(
        lambda data: CertificateAuthority(GATEWAY).issue(data, KEY, 1, START_S),
        (request_certificate(key_of("ann"), KEY, "ann", GATEWAY.public, START_S),),
        (UntrustedError,),
    ),
    "lists of revocations": Parser(
        lambda data: trust().revoke(data),
        (CertificateAuthority(GATEWAY).revocations((7, 9), START_S),),
        (UntrustedError,),
    ),
    "receipts": Parser(
        lambda data: read_receipt(data, GATEWAY.public),
        (sign_receipt(RECEIPT, GATEWAY),),
        (UntrustedError,),
    ),
    "names that programs ask for": Parser(asked_name, (QUESTION, QUESTION[:-11])),
    "SOCKS": Parser(
        lambda data: SocksParser().feed(data),
        (
            b"\x05\x01\x00\x05\x01\x00\x03\x06a.test\x01\xbb",
            b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50",
        ),
        (SocksError,),
    ),
    "lines to join with": Parser(
        lambda data: joined_gateway.parse(data.decode("latin-1")),
        (joined_gateway.invitation(("::1", 7010), KEY, KEY).encode(),),
        (ValueError,),
    ),
    "authorities": Parser(authority_of, (b"a.test:443", b"[2001:db8::1]:80"), (ValueError, RefusedError)),
    "session records": Parser(unpack, (bytes((1,)) + bytes(30),), (ProtocolError,)),
    "session hellos": Parser(
        handshake.Hello.unpack, (handshake.MAGIC + bytes(80),), (handshake.MalformedError,)
    ),
    "session set-up": Parser(
        lambda data: [
            _tried(each, data, handshake.MalformedError)
            for each in (
                handshake.Offer.unpack,
                handshake.Granted.unpack,
                handshake.Resume.unpack,
                handshake.unpack_answer,
                handshake.unpack_stale,
                handshake.unpack_notice,
            )
        ],
        (bytes(36), bytes(44), bytes(60), bytes(7)),
    ),
}  # fmt: skip


def _tried(call, data, refusal):
    with contextlib.suppress(refusal):
        call(data)


def mutated(chance, right):
    data = bytearray(right)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(7):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = chance.randbytes(chance.randrange(1, 20))
            case 2 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 3 if at < len(data):
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 4:
                data[at : at + chance.randrange(9)] = b""
            case 5:
                data[at:at] = data[: chance.randrange(len(data) + 1)]
            case _:
                data[at : at + 2] = chance.choice(
                    (b"\xff\xff", b"\0\0", b"\r\n", b'"', b"99999999")
                )
    return bytes(data[:70_000])


def inputs(chance, parser, number):
    kind = number % 4
    if kind == 3:
        return chance.randbytes(chance.randrange(200))
    right = chance.choice(parser.right)
    if kind == 2:
        return right[: chance.choice((1, 5, 13, 17, 73))] + attributes(chance)
    return mutated(chance, right)


# Those that open files, by the folder for them.
IN_FILES = {
    "leases": leased,
    "known servers and clients": in_a_file(keys.read_names),
}


def called(name, folder):
    return IN_FILES[name](folder) if name in IN_FILES else PARSERS[name].call


def harness(name, times, folder):
    parser = PARSERS[name]
    call = called(name, folder)
    chance = random.Random(f"{SEED} {name}")
    for number in range(times):
        data = inputs(chance, parser, number)
        began_s = time.thread_time()
        try:
            call(data)
        except parser.refusals:
            pass
        except Exception as error:
            raise AssertionError(f"{name}: {data!r}") from error
        assert time.thread_time() - began_s < SECONDS, (name, len(data), data[:200])


@pytest.mark.parametrize("name", PARSERS)
def test_nothing_escapes(name, tmp_path):
    harness(name, 1_000, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", PARSERS)
def test_nothing_escapes_of_ten_million(name, tmp_path, monkeypatch):
    # pyroute2 logs a trace of what it cannot decode, and pytest would keep all of them.
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    harness(name, 20_000 if name in IN_FILES else 300_000, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", PARSERS)
def test_nothing_escapes_of_what_coverage_leads_to(name, tmp_path):
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for number, right in enumerate(PARSERS[name].right):
        (seeds / str(number)).write_bytes(right)
    command = [
        *(sys.executable, str(Path(__file__).parent / "fuzz_foreign_bytes.py"), name, str(seeds)),
        *("-max_total_time=20", "-max_len=4096", "-timeout=10", "-rss_limit_mb=1024"),
        f"-artifact_prefix={tmp_path}/",
    ]
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=100, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr[-4000:]
    runs = re.search(r"Done (\d+) runs", run.stderr)
    assert int(runs[1]) > 500


@pytest.mark.parametrize("name", PARSERS)
def test_the_time_is_linear(name, tmp_path):
    """Eight times as long an input takes at most 24 times as long, once it takes long at all."""
    parser = PARSERS[name]
    call = called(name, tmp_path)
    for right in parser.right:
        value = right[: right.find(b":") + 1]  # where the value of a field begins
        for begin, pattern in (
            (right, right),
            (right, right[:1] + right[1:] * 2),
            (right, b"\r\n" + right[:9]),
            (right, right[:1]),
            (right, b"["),
            (right, b'"\\'),
            (value, b" "),
            (value, b"0"),
        ):
            took_s = []
            for size in (8_000, 64_000):
                data = (begin + pattern * (size // max(len(pattern), 1)))[:size] + b"\1"
                best_s = float("inf")
                for _ in range(3):
                    began_s = time.process_time()
                    _tried(call, data, Exception)
                    best_s = min(best_s, time.process_time() - began_s)
                took_s.append(best_s)
            assert took_s[1] < max(24 * took_s[0], 0.02), (name, pattern[:40], took_s)


@pytest.mark.parametrize("name", PARSERS)
def test_nothing_is_kept(name, tmp_path):
    harness(name, 200, tmp_path)  # what is learnt once: caches, compiled expressions
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        harness(name, 500, tmp_path)
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 300_000
    assert peak - before < 8_000_000
