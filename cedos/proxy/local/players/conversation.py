"""What a program and its server say to each other on one connection, as far as it is a player's HTTP/1.1.

It only listens. What is not understood is carried as if nobody had listened.
"""

from collections.abc import Callable
from typing import Final

from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.players import cmcd
from cedos.proxy.local.players.known_player import HEAD_BYTES, KnownPlayer
from cedos.proxy.local.players.passing_answer import PassingAnswer
from cedos.proxy.local.players.player import Piece
from cedos.proxy.local.players.players import PLAYLIST_TYPES, Asked, Players
from cedos.proxy.local.players.playlist import LONGEST as LONGEST_PLAYLIST
from cedos.proxy.request import LONGEST_HEAD, forwarded
from cedos.proxy.streams.stream import Chunk, ProxiedStream

_HEAD_END: Final = b"\r\n\r\n"
_METHODS: Final = (b"GET ", b"HEAD ")
_BELIEVED: Final = (b"audio/", b"video/")
_HTTP_PORT: Final = 80
_LONGEST_HOST: Final = 260


class Conversation:
    """`goes_over` a session and `opened` by a stream of it; `said` and `answered` get what goes by.

    `close` when it is over.

    `link`: over which session it had better go on; None: over that of all programs. Players' requests
    go over their own once that stands, and what is none of theirs over the common one: a connection
    changes between two requests. What waits for a network is not said before there is one, and by a
    stream of its own: then its answer's head can be let through alone (`allowed`).
    """

    def __init__(self, players: Players, host: str, port: int, clock: Callable[[], float]) -> None:
        self._players = players
        self._server = host if port == _HTTP_PORT else f"{host}:{port}"
        self._clock = clock
        self._head = b""
        self._answer: PassingAnswer | None = None
        self._asked: Asked | None = None
        self._player: KnownPlayer | None = None
        self._piece: Piece | None = None
        self._off = False
        self._link: GatewayLink | None = None
        self._current: GatewayLink | None = None
        self._headed: ProxiedStream | None = None

    @property
    def link(self) -> GatewayLink | None:
        return self._link

    def goes_over(self, link: GatewayLink | None) -> None:
        self._current = link
        if link is None and self._piece is not None:
            self._piece.held = False

    def opened(self, stream: ProxiedStream) -> None:
        """It goes on by this stream, on which nothing was said yet."""
        self._headed = None
        if self._piece is not None and self._player is not None and self._current is not None:
            self._headed = stream if self._player.opened(self._piece, stream) else None

    def said(self, data: bytes | memoryview) -> bool:
        """Takes what the program says; False: it had better be said over `link`."""
        if self._off:
            return True
        whole = not self._head
        self._head += data
        clear = self._answer is None or self._answer.complete
        if not self._head.startswith(_METHODS) or len(self._head) > LONGEST_HEAD:
            return self._leave_off(may_move=whole and clear)
        end = self._head.find(_HEAD_END)
        if end < 0:
            return True
        head, rest = self._head[:end], self._head[end + len(_HEAD_END) :]
        self._head = b""
        if rest or not self._between():
            return self._leave_off(may_move=False)
        asked = self._read(head)
        if asked is None:
            return self._leave_off(may_move=whole and clear)
        self._begin(asked)
        if not (whole and clear):
            return True
        held = self._holds
        return self._link is self._current and not held

    def allowed(self, parts: list[Chunk]) -> list[Chunk]:
        """The head and one byte, as long as no more is let come than that needs.

        Chromium tells nobody of a head before the body begins; where it does not believe the content
        type it wants more of it. Of some bytes, and nothing then, players conclude how slow it is.
        """
        stream, answer = self._headed, self._answer
        if stream is None or answer is None or self._off:
            return parts
        data = b"".join(parts)
        if not answer.begun:
            return [data[: answer.head_bytes(data)]]
        more_comes = stream.received_bytes <= HEAD_BYTES and answer.left_bytes > len(data)
        if more_comes and not stream.peer_ended and stream.broken is None:
            if answer.body_bytes:
                return []
            if answer.content_type.startswith(_BELIEVED):
                return [data[:1]]
        self._headed = None
        return parts

    def answered(self, data: bytes | memoryview) -> None:
        """Takes what the program was given."""
        answer = self._answer
        if self._off or answer is None:
            return
        answer.feed(data)
        if self._piece is not None and self._player is not None:
            self._piece.came(answer.body_bytes, self._clock())
            if not self._piece.answered and (answer.begun or self._has_long_head):
                self._player.answered(self._piece)
        if answer.strange:
            self._leave_off(may_move=False)
        elif answer.complete:
            self._end(whole=True)

    @property
    def gave_up(self) -> bool:
        """Whether a program that says no more has given up what it asked for; players wait."""
        if self._piece is None:
            return False
        return not self._piece.received_bytes or self._headed is not None

    def close(self) -> None:
        """The connection is over."""
        answer = self._answer
        self._end(whole=answer is not None and (answer.complete or answer.open_ended))
        self._off = True

    @property
    def _holds(self) -> bool:
        if self._link is None or self._piece is None or self._player is None:
            return False
        return self._player.holds(self._piece)

    @property
    def _has_long_head(self) -> bool:
        return self._headed is not None and self._headed.received_bytes >= HEAD_BYTES

    def _between(self) -> bool:
        """Whether the answer before has come, as players wait for it; one without a length ends so."""
        if self._answer is not None and not self._answer.complete:
            if not self._answer.open_ended:
                return False
            self._end(whole=True)
        return True

    def _read(self, head: bytes) -> Asked | None:
        parsed = forwarded(head)
        if parsed is None:
            return None
        method, target, fields = parsed
        names = {name.lower() for name, _ in fields}
        if method not in (b"GET", b"HEAD") or names & {b"transfer-encoding", b"upgrade"}:
            return None
        if any(name.lower() == b"content-length" and value != b"0" for name, value in fields):
            return None
        named = [value for name, value in fields if name.lower() == b"host"]
        server = named[0].decode("latin-1").lower() if named else self._server
        return Asked(server[:_LONGEST_HOST], target, fields, bodiless=method == b"HEAD")

    def _begin(self, asked: Asked) -> None:
        now = self._clock()
        types = None if asked.may_be_playlist else PLAYLIST_TYPES
        self._answer = PassingAnswer(
            bodiless=asked.bodiless, keep_bytes=LONGEST_PLAYLIST, keep_types=types
        )
        self._asked = asked
        word = self._players.word(asked, now)
        player = self._players.player(asked, word)
        if player is not None:
            self._player = player
        precedes = word is not None and word.kind == cmcd.PRECEDING
        if self._player is None or precedes or (word is None and self._current is None):
            # (What precedes segments is small, and would open their session to metered networks.)
            self._link = None
            return
        self._piece = self._player.asked(word, cmcd.without(asked.target))
        self._link = self._player.link(word)

    def _end(self, *, whole: bool) -> None:
        now = self._clock()
        answer, asked = self._answer, self._asked
        if self._piece is not None and self._player is not None:
            self._player.ended(self._piece, whole=whole)
            self._piece = None
        if answer is not None and asked is not None and whole:
            self._players.came(asked, answer, now)
        self._asked = None

    def _leave_off(self, *, may_move: bool) -> bool:
        """Listens no more; what was said goes over the common session, if it may change.

        Else whatever is wanted there is urgent as long as the connection lasts.
        """
        if self._piece is not None:
            self._end(whole=False)
        self._answer, self._off, self._link = None, True, None
        stays = not may_move or self._current is None
        if stays and self._current is not None and self._player is not None:
            self._piece = self._player.asked(None)
        return stays
