"""The players behind one proxy: found by their own name, or by the server whose playlists they read.

What DASH calls a manifest is a playlist here.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cedos.proxy.local.players import cmcd, manifest, playlist
from cedos.proxy.local.players.cmcd import PlayerWord
from cedos.proxy.local.players.known_player import KnownPlayer, LinkMaker
from cedos.proxy.local.players.listed_stream import ListedObjects
from cedos.proxy.local.players.passing_answer import PassingAnswer

_MOST: Final = 8
_FORGOTTEN_S: Final = 120.0
_OK: Final = 200
_Parse = Callable[[str, bytes], ListedObjects | None]
_BY_SUFFIX: Final[dict[bytes, _Parse]] = {b".m3u8": playlist.parse, b".mpd": manifest.parse}
_BY_TYPE: Final[dict[bytes, _Parse]] = {
    b"application/dash+xml": manifest.parse,
    b"application/vnd.apple.mpegurl": playlist.parse,
    b"application/x-mpegurl": playlist.parse,
    b"audio/mpegurl": playlist.parse,
    b"audio/x-mpegurl": playlist.parse,
}
PLAYLIST_TYPES: Final = frozenset(_BY_TYPE)
"""Of answers that are playlists whatever their addresses."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for `target` at a server (host, and the port that is not 80)."""

    server: str
    target: bytes
    fields: Sequence[tuple[bytes, bytes]]
    bodiless: bool = False

    @property
    def may_be_playlist(self) -> bool:
        """By its address."""
        return self._parse is not None and not self.bodiless

    def parser(self, content_type: bytes) -> _Parse | None:
        """Of the answer; None: it is no playlist."""
        if self.bodiless:
            return None
        return _BY_TYPE.get(content_type, self._parse)

    @property
    def url(self) -> str:
        return f"http://{self.server}{self.target.decode('ascii')}"

    @property
    def _parse(self) -> _Parse | None:
        path = self.target.partition(b"?")[0].lower()
        return next((each for suffix, each in _BY_SUFFIX.items() if path.endswith(suffix)), None)


class Players:
    """`player` and `word` for each request, `came` once it was answered; `close` at the end."""

    def __init__(self, make_link: LinkMaker, clock: Callable[[], float]) -> None:
        self._make_link = make_link
        self._clock = clock
        self._by_session: dict[str, KnownPlayer] = {}
        self._by_server: dict[str, KnownPlayer] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[KnownPlayer]:
        return iter([*self._by_session.values(), *self._by_server.values()])

    def word(self, asked: Asked, now: float) -> PlayerWord | None:
        """What it says of its store, or what the playlists say."""
        said = cmcd.parse(asked.target, asked.fields)
        if said is not None:
            return said
        known = self._by_server.get(asked.server)
        return None if known is None else known.streams.word(asked.target.decode("ascii"), now)

    def player(self, asked: Asked, word: PlayerWord | None) -> KnownPlayer | None:
        """Who asks; None: no player, or one too many."""
        if word is None:
            return None
        if word.session is not None:
            return self._found(self._by_session, word.session, asked.server)
        return self._found(self._by_server, asked.server, asked.server)

    def came(self, asked: Asked, answer: PassingAnswer, now: float) -> None:
        """An answer came whole: a playlist, perhaps, or what one has told of."""
        target = asked.target.decode("ascii")
        if answer.status != _OK:
            return
        parse = asked.parser(answer.content_type)
        if parse is None:
            if (known := self._by_server.get(asked.server)) is not None:
                known.streams.came(target, now)
            return
        body = answer.body()
        segments = None if body is None else parse(asked.url, body)
        if segments is not None:
            known = self._found(self._by_server, asked.server, asked.server)
            if known is not None:
                known.streams.read(asked.url, segments, now)

    def check_networks(self) -> None:
        """Other interfaces may be used than before: their sessions leave those that may not."""
        for each in self:
            each.check_networks()

    async def close(self) -> None:
        known = list(self)
        self._by_session.clear()
        self._by_server.clear()
        await asyncio.gather(*(each.close() for each in known), *self._closing)

    def _found(self, which: dict[str, KnownPlayer], key: str, name: str) -> KnownPlayer | None:
        known = which.get(key)
        if known is None and self._has_room():
            known = which[key] = KnownPlayer(name, self._make_link, self._clock)
        return known

    def _has_room(self) -> bool:
        """Forgets who has not asked for anything for long."""
        now = self._clock()
        for which in (self._by_session, self._by_server):
            for key, known in list(which.items()):
                if now - known.used_s > _FORGOTTEN_S and not known.player.asks:
                    del which[key]
                    closing = asyncio.get_running_loop().create_task(known.close())
                    self._closing.add(closing)
                    closing.add_done_callback(self._closing.discard)
        return len(self._by_session) + len(self._by_server) < _MOST
