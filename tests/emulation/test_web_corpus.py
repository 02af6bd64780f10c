"""Generated sites are served as real ones are: with lengths, in chunks, or with no body at all."""

import pytest

from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.phones import Access, Laptop
from emu.testbed.programs.servers import Servers
from emu.workloads.web.corpus import BEACON, addresses, generate, nginx_servers, write

FAST = Trace.constant(48e6)
SAID = "%{http_code} %{http_version} %{size_download}"
SAID += " %header{content-length} %header{transfer-encoding}\n"


@pytest.fixture(scope="module")
def served():
    corpus = generate(sites=1, seed=6)
    access = Access(NetworkKind.WIFI, up=FAST, down=FAST, rtt_s=0.004)
    with Laptop(access) as laptop:
        folder = laptop.directory / "sites"
        write(corpus, folder)
        sites = nginx_servers(corpus, folder, tls=True, http2=True)
        with Servers(laptop, tls=True, sites=sites, addresses=addresses(corpus)) as servers:
            yield laptop, servers, corpus


def chosen(corpus):
    """Some objects of each kind of answer."""
    (page,) = corpus.pages
    kinds = [
        [each for each in page.objects if each.chunked],
        [each for each in page.objects if each.mime == BEACON],
        [each for each in page.objects if not each.chunked and each.mime != BEACON],
    ]
    assert all(kinds)
    return [each for kind in kinds for each in kind[:4]]


@pytest.mark.parametrize("tls", [False, True])
def test_answers_have_a_length_or_chunks_or_nothing(served, tls):
    laptop, servers, corpus = served
    given = addresses(corpus)
    command = ["curl", "-sS", "--max-time", "10", "--cacert", str(servers.certificate)]
    command += ["--write-out", SAID]
    for each in chosen(corpus):
        port = 443 if tls else 80
        command += ["--resolve", f"{each.host}:{port}:{given[each.host]}", "-o", "/dev/null"]
        command.append(each.url(tls=tls))
    lines = laptop.client.run(*command).stdout.splitlines()
    for each, line in zip(chosen(corpus), lines, strict=True):
        length = "" if each.chunked or each.mime == BEACON else str(each.size_bytes)
        expected = [
            "204" if each.mime == BEACON else "200",
            "2" if tls else "1.1",
            str(each.size_bytes),
            length,
            "chunked" if each.chunked and not tls else "",
        ]
        assert line.split(" ") == expected, each


def test_each_host_s_name_has_its_own_address(served):
    laptop, _, corpus = served
    command = ["python3", "-c", _ASK, *corpus.hosts]
    output = laptop.client.run(*command).stdout.splitlines()
    assert output == [addresses(corpus)[host] for host in corpus.hosts]


# A DNS question for an A record by hand: the testbed's client has no resolver of its own.
_ASK = """
import socket, sys
for host in sys.argv[1:]:
    asked = bytes([0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    asked += b"".join(bytes([len(part)]) + part.encode() for part in host.split("."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ask:
        ask.settimeout(3)
        ask.sendto(asked + bytes([0, 0, 1, 0, 1]), ("198.51.100.1", 53))
        print(socket.inet_ntoa(ask.recv(512)[-4:]))
"""
