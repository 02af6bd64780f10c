"""Addresses that lead to the gateway's own host, whatever their form: the kernel itself is asked."""

import json
import subprocess
import sys

_ASKS = """
import json, socket, sys
from ipaddress import ip_network
from cedos.proxy.gateway.origin import DestinationRules
from cedos.proxy.http import RefusedError
from cedos.web import distance

def why(address, port=443, **settings):
    try:
        DestinationRules((3128,), **settings).check(address, port)
    except RefusedError as error:
        return error.details
    return ""

def reached(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    here = socket.socket(family, socket.SOCK_DGRAM)
    here.bind(("", 0))
    here.settimeout(0.3)
    with socket.socket(family, socket.SOCK_DGRAM) as there:
        try:
            there.sendto(b"hello", (address, here.getsockname()[1]))
            return here.recv(10) == b"hello"
        except OSError:
            return False

everywhere = [ip_network("0.0.0.0/0"), ip_network("::/0")]
print(json.dumps({
    each: (reached(each), why(each), why(each, inside=everywhere), why(each, local=True),
           why(each, 3128, local=True), distance(each).name)
    for each in sys.argv[1:]
}))
"""
_OWN = {
    "an address": "2a00:1:2:3::5",
    "a prefix's routers": "2a00:1:2:3::",
    "with a zone": "2a00:1:2:3::%d0",
    "routers of a private prefix": "fd00:1::",
    "a prefix that is all local": "2a00:9::77",
    "IPv4": "8.8.4.5",
    "IPv4, all local": "8.8.9.77",
}
_OTHERS = ["2a00:1:2:3::6", "8.8.4.6", "8.8.8.8", "2a00:7::1", "2001:4860::1"]
_REFUSED = ["8.8.4.255", "8.8.4.0"]  # IPv4's subnet-wide addresses are no host's


def test_what_the_kernel_delivers_here_is_the_hosts_own(make_namespace):
    host, router = make_namespace("host"), make_namespace("router")
    host.ip("link", "add", "d0", "type", "veth", "peer", "name", "d1", "netns", router.name)
    for each, name in ((host, "lo"), (host, "d0"), (router, "d1")):
        each.ip("link", "set", name, "up")
    host.run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1", "net.ipv4.ip_nonlocal_bind=1")
    for address in ("2a00:1:2:3::5/64", "fd00:1::5/64", "8.8.4.5/24"):
        host.ip("address", "add", address, "dev", "d0", *(["nodad"] if ":" in address else []))
    host.ip("-6", "route", "add", "local", "2a00:9::/64", "dev", "lo")
    host.ip("route", "add", "local", "8.8.9.0/24", "dev", "lo")
    host.ip("route", "add", "default", "via", "8.8.4.1")
    host.ip("-6", "route", "add", "default", "via", "2a00:1:2:3::1")
    host.ip("-6", "route", "add", "blackhole", "2a00:7::/32")
    process = host.popen(
        sys.executable, "-c", _ASKS, *_OWN.values(), *_OTHERS, *_REFUSED,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    found = json.loads(process.communicate(timeout=30)[0])
    for what, each in _OWN.items():
        reached, closed, inside, local, itself, far = found[each]
        assert reached or "%" in each, what  # (the C library takes no zone for it)
        assert "own host" in closed, what
        assert "own host" in inside, what
        assert not local, what
        assert "leads back here" in itself, what
        assert far == "HOST", what
    for each in _OTHERS:
        reached, closed, *_, far = found[each]
        assert not reached, each
        assert not closed, each
        assert far == "INTERNET", each
    assert "one host's" in found["8.8.4.255"][1]
    assert not any(found[each][0] for each in _REFUSED)
