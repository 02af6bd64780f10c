"""Names that this host knows itself do not go to the gateway."""

import asyncio
import socket
from ipaddress import ip_address

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.proxy_requests import http_connect

from cedos.host.monitor import dns_message as dns
from cedos.model import address
from cedos.proxy.local.direct import LocalNames
from cedos.proxy.local.name_stub import NameStub
from cedos.proxy.names import answered_here, read


@pytest.fixture
def hosts(tmp_path):
    (tmp_path / "hosts").write_text(
        "127.0.0.1 localhost\n"
        "127.0.0.1\tnas.example.org  NAS2.example.org # a comment nocomment.example\n"
        "# 10.0.0.1 out.example\n"
        "fd00::7%eth0 six.example.org\n"
        "8.8.8.8 far.example.org\n10.0.0.3 both.example\nfd00::3 both.example.\n"
        "no-address word.example\n\n"
    )
    return tmp_path


def names(folder):
    return LocalNames(folder / "hosts")


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("nas.example.org", ["127.0.0.1"]), ("NAS.Example.ORG.", ["127.0.0.1"]),
        ("nas2.example.org", ["127.0.0.1"]), ("six.example.org", ["fd00::7%eth0"]),
        ("both.example", ["10.0.0.3", "fd00::3"]), ("nocomment.example", []), ("out.example", []),
        ("word.example", []), ("example.org", []), ("127.0.0.1", []),
    ],
)  # fmt: skip
def test_the_file_of_hosts(hosts, name, addresses):
    assert names(hosts).find(name) == addresses


def test_it_is_read_again_when_it_changes(hosts):
    found = names(hosts)
    assert found.find("new.example") == []
    (hosts / "hosts").write_text("10.1.1.1 new.example\n")
    assert found.find("new.example") == ["10.1.1.1"]
    (hosts / "hosts").unlink()
    assert found.find("new.example") == []


async def test_programs_reach_them_directly(ends, hosts):
    await ends.start()
    ends.proxy._names = names(hosts)

    async def says(_reader, writer):
        writer.write(b"here")

    port = await ends.origin(says)
    ends.link._used_at_s = 0.0
    reader, writer = await ends.ask(http_connect(port, "nas.example.org"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.getaddrinfo", _only_the_file)
        answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.endswith(b"here")
    assert ends.gateway.sessions == 0
    writer.close()


def _only_the_file(host, *_rest, **_more):
    assert host == "nas.example.org"
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


@pytest.mark.parametrize(
    ("name", "kind", "addresses"),
    [
        ("both.example", 1, ["10.0.0.3"]),
        ("both.example", 28, ["fd00::3"]),
        ("nas.example.org", 28, []),
        ("far.example.org", 1, ["8.8.8.8"]),
    ],
)
async def test_the_resolver_answers_for_them(ends, hosts, name, kind, addresses):
    await ends.start()
    stub = NameStub(ends.link, fails_open=False, names=names(hosts))
    message = dns.question(4711, name, kind)
    question = read(message)
    assert question is not None
    reply = dns.parse(await stub.answer(message, question))
    assert (reply.number, reply.code, reply.name) == (4711, 0, name)
    assert list(map(str, reply.addresses)) == addresses
    await stub.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.ip_addresses().map(str), max_size=20), st.sampled_from([1, 28]))
def test_an_answer_has_all_addresses_of_its_kind(addresses, kind):
    message = dns.question(1, "a.example", kind)
    question = read(message)
    assert question is not None
    reply = dns.parse(answered_here(message, question, addresses))
    wanted = [ip_address(each) for each in addresses if (":" in each) == (kind == 28)]
    assert list(reply.addresses) == [address(each.packed) for each in wanted]
