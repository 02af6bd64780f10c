"""Connections that a proxy carries through the gateway, and their report to the daemon once a second.

A connection does not know over which network its bytes went. So each second its new bytes are shared
among the networks in proportion to the bytes of its whole session.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, count, islice
from pathlib import Path
from typing import Final

import msgspec

from cedos.api.client import ControlClient
from cedos.api.messages import MOST_PROBLEM, MOST_TOLD, CarriedReport
from cedos.errors import CedosError
from cedos.model import CarriedConnection, Label
from cedos.proxy.streams.association import ProxiedAssociation
from cedos.proxy.streams.stream import LARGE, SMALL, SMALL_BYTES, ProxiedStream
from cedos.session.sockets.connection import Connection

# The most rows: twice the connections of a proxy, because ended ones wait for the next report.
_MOST: Final = 8_192

_MOST_UNCHANGED: Final = 16
_MOST_TEXT: Final = 253

_LOOK_S: Final = 1.0
# The longest time between two reports. The daemon drops what is not reported for five seconds.
_TELL_S: Final = 3.0

# If the daemon does not answer, report again after this time,
_AGAIN_S: Final = 4.0
# but after this long give up on ended connections
_ABSENT_S: Final = 60.0
# and report only as often as this.
_SELDOM_S: Final = 30.0
_TIMEOUT_S: Final = 2.0
_MOST_ADDRESSES: Final = 16
_MOST_BYTES: Final = 48_000

_Bytes = Mapping[str, int]


CarriedStream = ProxiedStream | ProxiedAssociation
# `CarriedConnections.watch`.
WatchStream = Callable[[Connection, CarriedStream, Callable[[Label], int | None]], None]


class _Watched:
    """A stream and its counts at the last look. An ended stream is released, and its session."""

    def __init__(
        self,
        number: int,
        stream: CarriedStream,
        session: Connection,
        began_s: float,
        # Returns the number of the daemon's last decision about a label in the session.
        decided: Callable[[Label], int | None],
        # The name that the program looked up for the address; its first bytes may tell another one.
        name: str | None,
    ) -> None:
        self.session: Connection | None = session
        self._stream: CarriedStream | None = stream
        self._began_s, self._decided = began_s, decided
        self._asked_for = stream.server
        self._down_left = self._up_left = 0  # bytes whose network is not known yet
        # Totals and end as last reported; None: nothing was reported so far.
        self._told: tuple[tuple[int, int, dict[str, int]], float | None] | None = None
        self.connection = CarriedConnection(
            number=number, server=(name or stream.server)[:_MOST_TEXT], port=stream.port
        )

    @property
    def changed(self) -> bool:
        """Tell whether it differs from what was reported."""
        return self._told != (self.connection.totals, self.connection.ended_unix_s)

    def on_told(self, told: CarriedConnection) -> None:
        self._told = told.totals, told.ended_unix_s

    def look(self, down: _Bytes, up: _Bytes) -> None:
        """Count the stream's new bytes; `down` and `up`: those of its session meanwhile, by network."""
        stream, before = self._stream, self.connection
        if stream is None:
            return
        self._down_left += stream.received_bytes - before.bytes_down
        self._up_left += stream.sent_bytes - before.bytes_up
        by = dict(before.bytes_by_network)
        if sum(down.values()):
            _share(self._down_left, down, by)
            self._down_left = 0
        # Bytes that the program wrote may still wait here: share at most as many as the session has sent.
        gone = min(self._up_left, sum(up.values()))
        _share(gone, up, by)
        self._up_left = 0 if stream.lossy else self._up_left - gone
        large = max(stream.received_bytes, stream.sent_bytes) > SMALL_BYTES
        renamed = stream.server != self._asked_for
        self.connection = msgspec.structs.replace(
            before,
            server=stream.server[:_MOST_TEXT] if renamed else before.server,
            bytes_down=stream.received_bytes,
            bytes_up=stream.sent_bytes,
            bytes_by_network=by,
            decision=self._decided(LARGE if large else SMALL) or before.decision,
            ended_unix_s=time.time() if stream.gone else None,
        )
        if stream.gone:
            self._stream = self.session = None

    def news(self, now_s: float) -> CarriedConnection:
        return msgspec.structs.replace(self.connection, age_s=max(0.0, now_s - self._began_s))


class CarriedConnections:
    """The connections of one proxy: `look` each second, then report `news` and say what was `told`.

    `name_of`: the name of an address, if a program looked it up before it connected there.
    """

    def __init__(
        self, clock: Callable[[], float], name_of: Callable[[str], str | None] = lambda _: None
    ) -> None:
        self._clock, self._name_of = clock, name_of
        self._numbers = count()
        self._connections: dict[int, _Watched] = {}  # reported longest ago first
        self._counted: dict[Connection, tuple[_Bytes, _Bytes]] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def watch(
        self, session: Connection, stream: CarriedStream, decided: Callable[[Label], int | None]
    ) -> None:
        """Watch one more stream, up to 8,192."""
        if session not in self._counted:  # its bytes so far belong to other connections
            self._counted[session] = session.received_by_network(), session.sent_by_network()
        if len(self) < _MOST:
            number = next(self._numbers)
            self._connections[number] = _Watched(
                number, stream, session, self._clock(), decided, self._name_of(stream.server)
            )

    def look(self) -> None:
        """Share the bytes since the last call among the networks."""
        before, self._counted = self._counted, {}
        carried: dict[Connection, tuple[_Bytes, _Bytes]] = {}
        sessions = {each.session for each in self._connections.values()}
        for session in filter(None, sessions):
            counts = session.received_by_network(), session.sent_by_network()
            self._counted[session] = counts
            down, up = map(_growth, counts, before.get(session, ({}, {})))
            carried[session] = down, up
        for each in self._connections.values():
            if each.session is not None:
                each.look(*carried[each.session])

    @property
    def addresses(self) -> set[str]:
        """The addresses to which the sessions' own connections lead now."""
        return {path.peer for session in self._counted for path in session.paths()}

    @property
    def changed(self) -> bool:
        """Tell whether there is something new to report."""
        return any(each.changed for each in self._connections.values())

    def news(self) -> list[CarriedConnection]:
        """Return those that changed, began or ended, and some others, for a daemon that has restarted."""
        now_s = self._clock()
        connections = self._connections.values()
        first = [each for each in connections if each.changed]
        others = islice((each for each in connections if not each.changed), _MOST_UNCHANGED)
        return [each.news(now_s) for each in islice(chain(first, others), MOST_TOLD)]

    def on_reported(self, news: Iterable[CarriedConnection]) -> None:
        """Note that a daemon has these; forget those that ended."""
        for one in news:
            watched = self._connections.pop(one.number)
            if one.ended_unix_s is None:
                watched.on_told(one)
                self._connections[one.number] = watched

    def forget_ended(self) -> None:
        """Give up reporting those that ended."""
        ended = (each.connection for each in self._connections.values())
        self.on_reported([each for each in ended if each.ended_unix_s is not None])


def _growth(now: _Bytes, before: _Bytes) -> dict[str, int]:
    return {network: max(0, size - before.get(network, 0)) for network, size in now.items()}


def _share(size_bytes: int, carried: _Bytes, by: dict[str, int]) -> None:
    """Add `size_bytes` to `by`, shared as `carried` is."""
    # Share what is left by what is left of the weights, so that rounding loses no byte.
    left, rest = size_bytes, sum(carried.values())
    for network, size in carried.items():
        share = left * size // rest if rest else 0
        left, rest = left - share, rest - size
        if share:
            by[network] = by.get(network, 0) + share


class CarriedTeller:
    """The reports to the daemon: `run` until it is cancelled, then `report_last`.

    `problem` returns what hinders the proxy, in words; "": nothing.
    """

    def __init__(
        self,
        socket: Path,
        connections: CarriedConnections,
        gateway: str,
        problem: Callable[[], str] = str,
    ) -> None:
        self._problem, self._told_problem = problem, ""
        self._client = ControlClient(socket, _TIMEOUT_S)
        self._connections = connections
        self._gateway = gateway
        self._addresses: dict[str, None] = {}  # the newest at the end
        self._program = secrets.token_hex(16)

    async def run(self) -> None:
        connections, silent_s, unheard_s, pause_s = self._connections, 0.0, 0.0, 0.0
        while True:
            # Each look lets go of the sessions that have ended since.
            self._look()
            problem = self._problem()
            # Report changes at once, and everything every few seconds, or the daemon would drop it.
            news = (connections and connections.changed) or problem != self._told_problem
            due = news or ((connections or problem) and silent_s >= _TELL_S)
            if due and silent_s >= pause_s:
                heard = await self._tell()
                silent_s = 0.0
                unheard_s = 0.0 if heard else unheard_s + _AGAIN_S
                pause_s = 0.0 if heard else _AGAIN_S
                if unheard_s >= _ABSENT_S:
                    connections.forget_ended()
                    pause_s = _SELDOM_S
            await asyncio.sleep(_LOOK_S)
            silent_s += _LOOK_S

    async def report_last(self) -> None:
        """Report what is not reported yet: a proxy may have carried one connection, for half a second."""
        self._look()
        if self._connections.changed:
            await self._tell()

    def _look(self) -> None:
        self._connections.look()
        for address in sorted(self._connections.addresses):
            self._addresses.pop(address, None)
            self._addresses[address] = None

    async def _tell(self) -> bool:
        news = list(_that_fit(self._connections.news()))
        report = CarriedReport(
            program=self._program,
            gateway=self._gateway,
            addresses=tuple(self._addresses)[-_MOST_ADDRESSES:],
            connections=tuple(news),
            problem=self._problem()[:MOST_PROBLEM],
        )
        try:
            await asyncio.to_thread(self._client.report_carried, report)
        except CedosError:  # no daemon, another version, or no right to
            return False
        self._told_problem = report.problem
        self._connections.on_reported(news)
        return True


def _that_fit(news: Iterable[CarriedConnection]) -> Iterator[CarriedConnection]:
    """Yield as many as fit into a report: the daemon takes 64 KiB, and programs choose long names."""
    room = _MOST_BYTES
    for one in news:
        room -= len(msgspec.json.encode(one)) + 1
        if room < 0:
            break
        yield one
