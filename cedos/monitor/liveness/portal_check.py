"""Asks for the test page over one network: name, connection and page all through its interface."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Sequence
from ipaddress import ip_address

from cedos.errors import PrivilegeError
from cedos.kernel.interface_socket import interface_socket
from cedos.model import Address, Network
from cedos.monitor.dns import message
from cedos.monitor.flows import own_flows
from cedos.monitor.liveness.portal_verdict import (
    MAX_ANSWER_BYTES,
    PortalFinding,
    PortalVerdict,
    TestPage,
    judge,
    origin,
    same_private_address,
)
from cedos.monitor.probing.ping import PingSocket

_DNS_PORT = 53
_ASK_AGAIN_S = 0.5
# Of the time for everything, the share that names may take.
_NAMES_SHARE = 0.5


async def check(
    network: Network, page: TestPage, timeout_s: float, port: int = _DNS_PORT
) -> PortalFinding:
    """Ask for the test page over the network, all within `timeout_s`; never raises.

    A name that cannot exist is asked for, too: a portal's resolver gives both names the same private
    address. Costs about 900 bytes where the answer is right. `port` is the resolvers'.
    """
    try:
        async with asyncio.timeout(timeout_s):
            found = await _addresses(network, page.host, timeout_s * _NAMES_SHARE, port)
            if isinstance(found, PortalFinding):
                return found
            reached = [each for each in found if each.version in _versions(network)]
            if not reached:
                why = f"{page.host} has no address that this network could lead to"
                return PortalFinding(PortalVerdict.UNCLEAR, why)
            return judge(page, await _fetch(network, reached[0], page))
    except TimeoutError:
        return PortalFinding(PortalVerdict.SILENT, "the test page does not answer")
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        return PortalFinding(PortalVerdict.SILENT, f"the test page cannot be reached ({why})")


async def _addresses(
    network: Network, host: str, timeout_s: float, port: int
) -> Sequence[Address] | PortalFinding:
    with contextlib.suppress(ValueError):
        return [ip_address(host)]
    # Without a known resolver ask the router: mostly it is the resolver.
    resolvers = network.resolvers or network.gateways
    if not resolvers:
        return PortalFinding(PortalVerdict.UNCLEAR, "it is not known whom to ask for names")
    unreal = f"{secrets.token_hex(8)}.invalid"
    # A network of IPv6 alone leads to no IPv4 address.
    kind = message.A if 4 in _versions(network) else message.AAAA
    names = await asyncio.gather(
        *(_resolve(network, resolvers[0], name, kind, timeout_s, port) for name in (host, unreal))
    )
    asked = dict(zip((host, unreal), names, strict=True))
    if address := same_private_address({n: found for n, found in asked.items() if found}):
        why = f"every name is answered with {address}"
        return PortalFinding(PortalVerdict.CAPTIVE, why, origin(address), likeness=f"dns {address}")
    if names[0] is None:
        guessed = not network.resolvers
        return PortalFinding(PortalVerdict.SILENT, "names are not answered", guessed=guessed)
    # Where names that do not exist are given to an advertiser, the page's own may still be right.
    return names[0] or PortalFinding(PortalVerdict.UNCLEAR, f"{host} has no address")


async def _resolve(
    network: Network, resolver: Address, name: str, kind: int, timeout_s: float, port: int
) -> Sequence[Address] | None:
    """Return the addresses given for a name, in honesty or not; None without an answer."""
    number = secrets.randbits(16)
    question = message.question(number, name, kind)
    loop = asyncio.get_running_loop()
    with (
        interface_socket(network.interface, resolver.version, socket.SOCK_DGRAM) as asker,
        contextlib.suppress(OSError, TimeoutError),
    ):
        own_flows.connect(asker, resolver, port, network.index)
        async with asyncio.timeout(timeout_s):
            while True:
                await loop.sock_sendall(asker, question)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ASK_AGAIN_S):
                        return await _answer(asker, number, name, kind)
    return None


async def _answer(asker: socket.socket, number: int, name: str, kind: int) -> Sequence[Address]:
    loop = asyncio.get_running_loop()
    while True:
        data = await loop.sock_recv(asker, 4096)
        if message.fault(data, number, name, kind) is not message.DnsFault.FOREIGN:
            reply = message.parse(data)
            return reply.addresses if reply is not None else ()


def _versions(network: Network) -> set[int]:
    return {each.version for each in network.addresses if not each.is_link_local}


async def _fetch(network: Network, target: Address, page: TestPage) -> bytes:
    loop = asyncio.get_running_loop()
    with interface_socket(network.interface, target.version, socket.SOCK_STREAM) as fetcher:
        await own_flows.connected(fetcher, target, page.port, network.index)
        await loop.sock_sendall(fetcher, page.request())
        answer = b""
        while len(answer) < MAX_ANSWER_BYTES:
            received = await loop.sock_recv(fetcher, MAX_ANSWER_BYTES - len(answer))
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
    return bool(end) and (not right or (bool(page.body) and page.body.encode() in body))


async def gateway_answers(network: Network, timeout_s: float = 0.8) -> bool:
    """Return whether the network's router answers a ping in time; False where none can be sent.

    A router answers behind a portal, and where its uplink is gone.
    """
    if not network.gateways:
        return False
    gateway = network.gateways[0]
    answered = asyncio.Event()
    try:
        pinger = PingSocket(network.interface, gateway.version, lambda _, __: answered.set())
    except (OSError, PrivilegeError):
        return False
    try:
        with contextlib.suppress(OSError, TimeoutError):
            pinger.send(gateway)
            async with asyncio.timeout(timeout_s):
                await answered.wait()
    finally:
        pinger.close()
    return answered.is_set()
