"""A player with a session of its own, which uses metered networks by what it has in store."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.players.cmcd import PlayerWord
from cedos.proxy.local.players.listed_stream import ListedStreams
from cedos.proxy.local.players.player import HEAD_S, Piece, Player
from cedos.proxy.streams.stream import ProxiedStream
from cedos.session.sockets.connection import Connection

_log = structlog.get_logger(__name__)

UNUSED_S: Final = 60.0
"""Its session ends after so long without connections."""

PATIENCE_S: Final = 4.0
"""What it asks for waits so long for a metered network that it may use: a phone's radio may sleep."""

HEAD_BYTES: Final = 2_048
"""So much of an answer may come while its head alone is wanted."""


class LinkMaker(Protocol):
    def __call__(self, ready: Callable[[Connection], None], unused_s: float) -> GatewayLink:
        """A further session with the gateway; `ready` is called with each that was made."""


class KnownPlayer:
    """`asked` and `link` for each of its requests, `close` at the end.

    Attributes:
        player: what it has in store.
        streams: the playlists that it read.
        used_s: when it asked for anything last.
    """

    def __init__(self, name: str, make_link: LinkMaker, clock: Callable[[], float]) -> None:
        self.player = Player(name)
        self.streams = ListedStreams()
        self.used_s = clock()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._link = make_link(self._ready, UNUSED_S)
        self._connection: Connection | None = None
        self._unmetered: set[str] = set()
        self._narrow: list[ProxiedStream] = []

    @property
    def waits(self) -> bool:
        """Whether it has asked for something and waits for an unmetered network."""
        connection = self._connection
        return (
            connection is not None
            and self.player.asks
            and connection.waits
            and not connection.paths()
        )

    @property
    def unmetered(self) -> list[str]:
        """The networks that cost nothing and have led to the gateway."""
        return list(self._unmetered)

    def link(self, word: PlayerWord | None) -> GatewayLink | None:
        """Its own session once that stands; None: over the common one.

        What starts must not wait for a session that is only being made.
        """
        self.used_s = self._clock()
        if self._link.stands:
            return self._link
        if word is not None and self.player.is_known(word):
            self._link.prepare()
        return None

    def asked(self, word: PlayerWord | None, target: bytes = b"") -> Piece:
        """It asks, and is about to be let: what it has in store is known from now on."""
        piece = self.player.asked(word, self._clock(), target)
        if self._connection is not None and not self._connection.ended:
            self._connection.buffer_changed()
            networks = self._connection.networks()
            self._unmetered |= {name for name, metered in networks.items() if not metered}
            _log.debug(
                "a player asks",
                player=self.player.name,
                store_s=None if word is None else word.buffer_s,
                low_high=self.player.manager.thresholds(),
                waits=self._connection.waits,
                networks=[path.network for path in self._connection.paths() if not path.stalled],
                received_bytes=self._connection.received_by_network(),
            )
        self._let_go_soon()
        return piece

    def holds(self, piece: Piece) -> bool:
        """Whether it had better not be asked for before there is a network.

        It has to go over a stream of its own then.
        """
        connection = self._connection
        piece.held = (
            piece.word is not None
            and self.player.is_known(piece.word)
            and connection is not None
            and connection.waits
            and all(path.stalled for path in connection.paths())
        )
        return piece.held

    def opened(self, piece: Piece, stream: ProxiedStream) -> bool:
        """What was held goes over this stream now; whether its head alone is to come."""
        piece.headed = piece.held and self.player.heads_due(self._clock()) and self._costs
        piece.held = piece.headed
        if piece.headed:
            stream.narrow(HEAD_BYTES)
            self._narrow.append(stream)
            self._loop.call_later(HEAD_S, self._let_go)  # it may not come
        return piece.headed

    def answered(self, piece: Piece) -> None:
        """The answer's head is here."""
        piece.answered = True
        self._let_go_soon()

    def ended(self, piece: Piece, *, whole: bool) -> None:
        """It is answered, or given up."""
        connection = self._connection
        metered = connection is not None and not connection.waits and not connection.ended
        self.player.ended(piece, self._clock(), whole=whole, metered=metered)
        self._let_go_soon()

    def check_networks(self) -> None:
        """As `GatewayLink.check_networks`."""
        self._link.check_networks()

    async def close(self) -> None:
        await self._link.close()

    def _ready(self, connection: Connection) -> None:
        self._connection = connection
        player = self.player
        connection.wait_for(
            buffer=player.manager,
            buffered=lambda: player.buffered_bytes(self._clock()),
            awaited=lambda: player.awaited(self._clock()),
        )

    @property
    def _costs(self) -> bool:
        """Whether only metered networks lead to the gateway now."""
        if self._connection is None:
            return False
        metered = self._connection.networks()
        paths = (path for path in self._connection.paths() if not path.stalled)
        return all(metered.get(path.network, True) for path in paths)

    def _let_go_soon(self) -> None:
        """Not amid what a network brings, which may be left."""
        if self._narrow:
            self._loop.call_soon(self._let_go)

    def _let_go(self) -> None:
        """Once no heads are due the metered network is left; then what follows them may come."""
        if not self._narrow:
            return
        if self.player.heads_due(self._clock()):
            self._loop.call_later(HEAD_S, self._let_go)
            return
        narrow, self._narrow = self._narrow, []
        self.player.let_go()
        if self._connection is not None and not self._connection.ended:
            self._connection.buffer_changed()
            _log.debug("heads have come", player=self.player.name, streams=len(narrow))
        for stream in narrow:
            stream.widen()
