"""Tells the daemon of the players behind a proxy, for people (`cedos transfers`)."""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from cedos.api.client import ControlClient
from cedos.api.transfers import MOST_PLAYERS, PlayersReport, PlayingMessage
from cedos.errors import CedosError
from cedos.proxy.local.players.known_player import KnownPlayer

_TELL_S: Final = 1.0
_ABSENT_S: Final = 10.0
_TIMEOUT_S: Final = 1.0


class PlayerNews:
    """`run` until it is cancelled; without players, or without a daemon, nothing is said."""

    def __init__(
        self, socket: Path, players: Iterable[KnownPlayer], clock: Callable[[], float]
    ) -> None:
        self._client = ControlClient(socket, _TIMEOUT_S)
        self._players, self._clock = players, clock
        self._program = secrets.token_hex(16)

    async def run(self) -> None:
        while True:
            pause_s = _TELL_S
            heard = [each for each in self._players if each.player.is_heard]
            found = tuple(map(self._news, heard[:MOST_PLAYERS]))
            if found:
                report = PlayersReport(program=self._program, players=found)
                try:
                    await asyncio.to_thread(self._client.tell_players, report)
                except CedosError:  # none there, another version, not ours to tell
                    pause_s = _ABSENT_S
            await asyncio.sleep(pause_s)

    def _news(self, known: KnownPlayer) -> PlayingMessage:
        buffered_s = known.player.buffered_s(self._clock())
        return PlayingMessage(
            server=known.player.name,
            buffered_s=None if buffered_s == float("inf") else buffered_s,
            waits=known.waits,
            waits_for=tuple(known.unmetered),
        )
