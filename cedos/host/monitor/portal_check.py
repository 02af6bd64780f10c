"""Tests of one network beyond its router: names, a test page, and TLS with a well-known host.

Names, connections and the page all go through the network's interface. The page has a known answer; any
other one comes from a box in the way, such as a captive portal (RFC 8952). The TLS connection is a second
opinion: such a box can answer for a name, a ping or a page, but has no certificate of another host.
"""

import asyncio
import contextlib
import errno
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from cedos.controller.events import PortalFinding, PortalVerdict, TlsAnswer, Witness
from cedos.host.monitor import dns_message, flow_source
from cedos.host.monitor.dns_message import is_public
from cedos.kernel.interface_socket import interface_socket, receive
from cedos.model import Address, Network
from cedos.tls_client import TlsClient, tls_context

_DNS_PORT = 53
_ASK_AGAIN_S = 0.5
# The share of the whole time that look-ups may take.
_NAMES_SHARE = 0.5
# The most redirects followed. A portal redirects to its host, and that perhaps to the operator's.
_MOST_REDIRECTS = 3
_HTTPS = 443
MAX_ANSWER_BYTES = 4096
_USUAL_BODY = "NetworkManager is online"
_LONGEST_PAGE = 500
_TAG = re.compile(rb"<[^<>]*>")
_CHUNK_SIZE = re.compile(rb"\A[0-9A-Fa-f]{1,8}[^\r\n]{0,100}\r\n")
_STATUS = re.compile("[1-9][0-9]{2}")
_REDIRECTS = range(300, 400)
# 511 is made for portals (RFC 6585, 6); proxies that want a name and a password answer 401, 403 or 407.
_LOG_IN = frozenset({401, 403, 407, 511})


@dataclass(frozen=True, slots=True)
class TestPage:
    """The page that is asked for, and what it says: status 204 is right in any case."""

    __test__ = False  # no test of pytest's

    host: str
    port: int
    path: str
    body: str

    @classmethod
    def of(cls, url: str, body: str = _USUAL_BODY) -> "TestPage":
        """Return the page of an http:// URL; ValueError where it is none."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.username:
            raise ValueError(
                f'"{url}" is no test page; one like "http://example.com/page" would be right:'
                " https cannot be answered by a portal"
            )
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.hostname, parts.port or 80, path, body)

    def shown_by(self, body: bytes) -> bool:
        """Return whether an answer's text begins with this page's.

        A log-in page can have the same words further on: "success" is in many scripts.
        """
        expected = _TAG.sub(b"", self.body.encode()).strip()
        without_size = _CHUNK_SIZE.sub(b"", body)
        texts = (_TAG.sub(b"", each).lstrip() for each in (body, without_size))
        return bool(expected) and any(each.startswith(expected) for each in texts)

    def request(self) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            f"GET {self.path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: cedos\r\n"
            "Accept: */*\r\nCache-Control: no-cache\r\nConnection: close\r\n\r\n"
        ).encode()


def judge(page: TestPage, answer: bytes) -> PortalFinding:
    """Return what an answer to the page's request says (the first `MAX_ANSWER_BYTES` of it)."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not _STATUS.fullmatch(words[1]):
        if answer:
            return PortalFinding(
                PortalVerdict.CAPTIVE, "the test page was answered by something else than HTTP"
            )
        why = "the test page's connection was closed without an answer"
        return PortalFinding(PortalVerdict.SILENT, why)
    status = int(words[1])
    named = [line.partition(":") for line in lines]
    location = next((v.strip() for n, _, v in named if n.strip().lower() == "location"), "")
    likeness = sha256(f"{status} {location} ".encode() + body).hexdigest()
    if status == 204:
        return PortalFinding(PortalVerdict.FREE, "the test page answered as it should")
    if status == 200:
        if page.shown_by(body):
            return PortalFinding(PortalVerdict.FREE, "the test page answered as it should")
        if not body:
            return PortalFinding(PortalVerdict.UNCLEAR, "the test page came without its content")
        why = "another page came in place of the test page"
        return PortalFinding(PortalVerdict.CAPTIVE, why, likeness=likeness)
    if status in _REDIRECTS:
        log_in = location if _web_page(location) else ""
        nowhere = "" if log_in else " to something that is no web page"
        why = f"the test page was redirected{nowhere}"
        return PortalFinding(PortalVerdict.CAPTIVE, why, log_in, likeness)
    if status in _LOG_IN:
        return PortalFinding(
            PortalVerdict.CAPTIVE, f"the test page was refused ({status})", "", likeness
        )
    return PortalFinding(PortalVerdict.UNCLEAR, f"the test page answered with status {status}")


def _web_page(location: str) -> bool:
    """Return whether users can be told to open it: any host may have sent this answer."""
    return (
        location.lower().startswith(("http://", "https://"))
        and len(location) <= _LONGEST_PAGE
        and location.isascii()
        and location.isprintable()
        and " " not in location
    )


def same_private_address(answers: Mapping[str, Sequence[Address]]) -> Address | None:
    """Return the one private address that was given for every one of several names."""
    given = [tuple(addresses) for addresses in answers.values()]
    if len(given) < 2 or not given[0] or any(other != given[0] for other in given):
        return None
    return None if any(map(is_public, given[0])) else given[0][0]


def origin(address: Address) -> str:
    return f"http://[{address}]/" if isinstance(address, IPv6Address) else f"http://{address}/"


async def shake_hands(
    network: Network, target: Address, timeout_s: float, port: int = _HTTPS
) -> TlsAnswer:
    """Return what answered for `target`, whose certificate should be for its address; never raises."""
    connected = False
    try:
        async with asyncio.timeout(timeout_s):
            with interface_socket(network.interface, target.version, socket.SOCK_STREAM) as made:
                await flow_source.wait_connected(made, target, port, network.index)
                connected = True
                await TlsClient(tls_context(), str(target)).shake_hands(
                    (network.name, "portal"),
                    partial(asyncio.get_running_loop().sock_sendall, made),
                    partial(receive, made, 65536),
                )
    except ConnectionRefusedError:
        return TlsAnswer.REFUSED
    except (OSError, TimeoutError):  # (an error of TLS is an OSError)
        return TlsAnswer.ANSWERED if connected else TlsAnswer.SILENT
    return TlsAnswer.PROVEN


class _ForbiddenError(Exception):
    """A user's rule forbids the network for what is to be asked."""


class PortalCheck:
    """Asks for the test page.

    A name that cannot exist is asked for, too: a portal's resolver gives all names the same private
    address. Costs about 900 bytes where the answer is right.

    Args:
        page: the test page.
        known_name: a name that every honest resolver knows.
        port: the resolvers'.
        may: whether a user's rules allow a network for an address and port.
    """

    def __init__(
        self,
        page: TestPage,
        known_name: str = "example.com",
        port: int = _DNS_PORT,
        may: Callable[[Network, Address, int], bool] = lambda *_: True,
    ) -> None:
        self._page = page
        self._known_name = known_name
        self._port = port
        self._may = may

    async def __call__(self, network: Network, timeout_s: float) -> PortalFinding:
        """Ask over the network, all within `timeout_s`; never raises."""
        try:
            async with asyncio.timeout(timeout_s):
                finding = await self._find(network, timeout_s * _NAMES_SHARE)
        except _ForbiddenError:
            return PortalFinding(PortalVerdict.UNCLEAR, "a rule of yours forbids the check there")
        except TimeoutError:
            return PortalFinding(PortalVerdict.SILENT, "the test page does not answer")
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            return PortalFinding(PortalVerdict.SILENT, f"the test page cannot be reached ({why})")
        if finding.verdict is PortalVerdict.CAPTIVE and finding.witness is Witness.PAGE:
            hosts = dict(finding.hosts)
            # A log-in page that does not answer takes nothing back.
            with contextlib.suppress(OSError, ValueError, _ForbiddenError):
                async with asyncio.timeout(timeout_s):
                    await self._on_the_way(network, finding.page, hosts, timeout_s * _NAMES_SHARE)
            return replace(finding, hosts=hosts)
        return finding

    async def _find(self, network: Network, names_s: float) -> PortalFinding:
        host = self._page.host
        found = await self._addresses(network, names_s)
        if isinstance(found, PortalFinding):
            return found
        reached = [each for each in found if each.version in _versions(network)]
        if not reached:
            why = f"{host} has no address that this network could lead to"
            return PortalFinding(PortalVerdict.UNCLEAR, why)
        address = reached[0]
        if leads_nowhere(address):
            return PortalFinding(PortalVerdict.FILTERED, f"{host} leads to {address} there")
        if not dns_message.is_public(address) and not _is_address(host):
            # Other names are answered honestly (`_addresses`): a filter, or a page of one's own.
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(names_s):
                    own = judge(self._page, await self._fetch(network, address, self._page))
                    if own.verdict is PortalVerdict.FREE:
                        return own
            return PortalFinding(PortalVerdict.FILTERED, f"{host} leads to {address} there")
        finding = judge(self._page, await self._fetch(network, address, self._page))
        if finding.verdict is not PortalVerdict.CAPTIVE:
            return finding
        return replace(finding, hosts={host: found})

    async def _addresses(
        self, network: Network, timeout_s: float
    ) -> Sequence[Address] | PortalFinding:
        host = self._page.host
        if _is_address(host):
            return [ip_address(host)]
        unreal = f"{secrets.token_hex(8)}.invalid"
        resolvers = _resolvers(network)
        if not resolvers:
            return PortalFinding(PortalVerdict.UNCLEAR, "it is not known whom to ask for names")
        names = (host, unreal)
        answers = await asyncio.gather(*(self._ask(network, name, timeout_s) for name in names))
        asked = dict(zip(names, answers, strict=True))
        own = asked[host]
        if own and not any(map(dns_message.is_public, own)) and own != asked[unreal]:
            # Is it this name alone, or every name that exists?
            asked = {host: own, self._known_name: await self._ask(network, self._known_name, 1.0)}
        same = same_private_address({name: found for name, found in asked.items() if found})
        if same is not None and not leads_nowhere(same):
            return PortalFinding(
                PortalVerdict.CAPTIVE,
                f"every name is answered with {same}",
                origin(same),
                f"dns {same}",
                Witness.NAME,
                hosts={host: (same,)},
            )
        if own is None and asked.get(unreal) is not None:  # this name alone is dropped
            return PortalFinding(PortalVerdict.FILTERED, f"{host} is not answered there")
        if own is None:
            return PortalFinding(
                PortalVerdict.SILENT,
                "names are not answered",
                witness=Witness.NAME,
                guessed=not network.resolvers,
            )
        # Where names that do not exist are given to an advertiser, the page's own may still be right.
        return own or PortalFinding(PortalVerdict.FILTERED, f"{host} has no address there")

    async def _ask(self, network: Network, name: str, timeout_s: float) -> Sequence[Address] | None:
        """Return the addresses given for a name, in honesty or not; None without an answer."""
        # A network of IPv6 alone leads to no IPv4 address.
        kind = dns_message.A if 4 in _versions(network) else dns_message.AAAA
        resolver, number = _resolvers(network)[0], secrets.randbits(16)
        self._must_be_allowed(network, resolver, self._port)
        question = dns_message.question(number, name, kind)
        loop = asyncio.get_running_loop()
        with (
            interface_socket(network.interface, resolver.version, socket.SOCK_DGRAM) as asker,
            contextlib.suppress(OSError, TimeoutError),
        ):
            flow_source.connect(asker, resolver, self._port, network.index)
            async with asyncio.timeout(timeout_s):
                while True:
                    await loop.sock_sendall(asker, question)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_ASK_AGAIN_S):
                            return await _answer(asker, number, name, kind)
        return None

    async def _on_the_way(
        self, network: Network, location: str, found: dict[str, Sequence[Address]], names_s: float
    ) -> None:
        """Add the hosts from the redirect to the log-in page, with their addresses."""
        for _ in range(_MOST_REDIRECTS):
            # (Of an https:// page only the host is of interest.)
            page = TestPage.of(location.replace("https://", "http://", 1), "")
            if page.host in found:
                break
            if _is_address(page.host):
                addresses: Sequence[Address] | None = [ip_address(page.host)]
            else:
                addresses = await self._ask(network, page.host, names_s)
            usable = [each for each in addresses or () if not leads_nowhere(each)]
            found[page.host] = usable
            if not usable or location.startswith("https://"):
                break
            location = judge(page, await self._fetch(network, usable[0], page)).page

    async def _fetch(self, network: Network, address: Address, page: TestPage) -> bytes:
        self._must_be_allowed(network, address, page.port)
        return await _fetch(network, address, page)

    def _must_be_allowed(self, network: Network, address: Address, port: int) -> None:
        if not self._may(network, address, port):
            raise _ForbiddenError


async def _answer(asker: socket.socket, number: int, name: str, kind: int) -> Sequence[Address]:
    while True:
        data = await receive(asker, 4096)
        if dns_message.fault(data, number, name, kind) is not dns_message.DnsFault.FOREIGN:
            reply = dns_message.parse(data)
            return reply.addresses if reply is not None else ()


def leads_nowhere(address: Address) -> bool:
    """Return whether an address is no other host's: unspecified, loopback, multicast, or this host's."""
    if address.is_unspecified or address.is_loopback or address.is_multicast:
        return True
    if address.is_link_local:
        return False
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as own:
        try:
            own.bind((str(address), 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ip_address(host))
    return False


def _resolvers(network: Network) -> Sequence[Address]:
    # Without a known resolver ask the router: mostly it is the resolver.
    return network.resolvers or network.gateways


def _versions(network: Network) -> set[int]:
    return {version for version in (4, 6) if network.leads_out(version)}


async def _fetch(network: Network, target: Address, page: TestPage) -> bytes:
    loop = asyncio.get_running_loop()
    with interface_socket(network.interface, target.version, socket.SOCK_STREAM) as fetcher:
        await flow_source.wait_connected(fetcher, target, page.port, network.index)
        await loop.sock_sendall(fetcher, page.request())
        answer = b""
        while len(answer) < MAX_ANSWER_BYTES:
            received = await receive(fetcher, MAX_ANSWER_BYTES - len(answer))
            if not received:
                break
            answer += received
            if _complete(answer, page):
                break
    return answer


def _complete(answer: bytes, page: TestPage) -> bool:
    """Return whether what came is enough: no body to wait for, or all of the expected one."""
    head, end, body = answer.partition(b"\r\n\r\n")
    right = head.split(b" ", 2)[1:2] == [b"200"]
    return bool(end) and (not right or page.shown_by(body))
