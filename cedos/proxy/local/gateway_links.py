"""Several joined gateways: each connection goes through the first one that answers.

Each gateway is independent and has a session of its own (`GatewayLink`). They are tried in the order of
the file of joined gateways, but one that does not answer comes behind those that do. It is dialled again
in the background, so that no connection waits for it, and gets its old turn once it answers.
"""

from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import TypeVar

from cedos.kernel.socket_owners import UNKNOWN
from cedos.proxy.local.gateway_link import GatewayLink, GatewayUnreachableError
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.streams.association import ProxiedAssociation
from cedos.proxy.streams.stream import ProxiedStream

_Opened = TypeVar("_Opened", ProxiedStream, ProxiedAssociation)


class GatewayLinks:
    """The links to all joined gateways, at least one, in the order in which they are tried."""

    def __init__(self, links: Sequence[GatewayLink]) -> None:
        self._links = list(links)
        self._left: list[GatewayLink] = []

    def follow(
        self, joined: Sequence[JoinedGateway], made: Callable[[JoinedGateway], GatewayLink]
    ) -> None:
        """Use these gateways from now on; connections through another one go on until they end."""
        known = {link.joined.identity: link for link in (*self._left, *self._links)}
        self._links = [known.get(each.identity) or made(each) for each in joined]
        self._left = [each for each in known.values() if each not in self._links]

    def _in_order(self) -> list[GatewayLink]:
        return sorted(self._links, key=lambda link: (link.is_away, not link.answers))

    @property
    def stands(self) -> bool:
        """Tell whether the gateway that is tried next has a session, which may wait for a network."""
        return self._in_order()[0].stands

    @property
    def rtt_s(self) -> float | None:
        """The shortest round trip to the gateway that is tried next; None: it is not measured."""
        return self._in_order()[0].rtt_s

    def leads_to(self, host: str, *, by_network: bool = True) -> bool:
        """Return whether a host is one of the gateways. Arguments: `GatewayLink.leads_to`."""
        return any(
            link.leads_to(host, by_network=by_network) for link in (*self._links, *self._left)
        )

    def went_direct(self) -> None:
        """Note that a connection reached its origin without the gateways: the networks work."""
        for link in self._links:
            link.went_direct()

    async def open(
        self,
        host: str,
        port: int,
        begun: Callable[[ProxiedStream], None] | None = None,
        *,
        user: int = UNKNOWN.user,
    ) -> ProxiedStream:
        """Open a stream to an origin. Arguments and errors: `GatewayLink.open`."""
        return await self._open_over_first(
            lambda link, asked: link.open(host, port, asked, user=user), begun
        )

    async def associate(
        self,
        begun: Callable[[ProxiedAssociation], None] | None = None,
        user: int = UNKNOWN.user,
    ) -> ProxiedAssociation:
        """Open an association for datagrams. Arguments and errors: `GatewayLink.associate`."""
        return await self._open_over_first(lambda link, asked: link.associate(asked, user), begun)

    async def ask(self, message: bytes) -> bytes:
        """Return a gateway's answer to a DNS message. GatewayUnreachableError: none answers."""
        *first, last = self._in_order()
        for link in first:
            try:
                return await link.ask(message)
            except GatewayUnreachableError:
                continue
        return await last.ask(message)

    async def close(self) -> None:
        """End all sessions; their streams break."""
        for link in (*self._links, *self._left):
            await link.close()

    async def _open_over_first(
        self,
        open_over: Callable[[GatewayLink, Callable[[_Opened], None]], Awaitable[_Opened]],
        begun: Callable[[_Opened], None] | None,
    ) -> _Opened:
        """Open over the first link that answers. GatewayUnreachableError: none does."""
        # Whether a gateway was asked to open the stream: then first bytes may have left with that.
        was_asked = False

        def on_asked(opened: _Opened) -> None:
            nonlocal was_asked
            was_asked = True
            if begun is not None:
                begun(opened)

        failed: list[GatewayLink] = []
        order = self._in_order()
        for link in order:
            try:
                opened = await open_over(link, on_asked)
            except GatewayUnreachableError:
                # The origin may have got first bytes: only the caller knows whether to send them again.
                if was_asked or link is order[-1]:
                    raise
                failed.append(link)
            else:
                break
        # The networks work, so a gateway that stays silent is given up after a while.
        for each in failed:
            each.went_direct()
        # A gateway that comes earlier in the file is dialled again, beside this connection.
        for each in takewhile(lambda each: each is not link, self._links):
            each.prepare()
        return opened
