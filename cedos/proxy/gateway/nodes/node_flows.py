"""The flows of all nodes of a gateway, in Redis: written when one falls quiet, read by the others.

Where one lives is there as well, as long as it does, so that others can pass its client's connections on.

Each is a hash: `s`, how many attempts of its client its node has seen, and `v`, its sealed record (or
place). A node writes only where it has seen as many as stand there. A client that goes on at another node
makes one attempt more, so that what the first one writes then is refused: it looks, and lets go of the
client.
"""

import asyncio
import os
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import structlog

from cedos.proxy.gateway.nodes.node_door import MOST as MOST_ASKING
from cedos.proxy.gateway.nodes.node_door import NodeDoor
from cedos.proxy.gateway.nodes.node_figures import NodeFigures
from cedos.proxy.gateway.nodes.node_messages import packed_address, shown_address
from cedos.proxy.gateway.nodes.passed_connections import MOST as MOST_PASSED
from cedos.proxy.gateway.nodes.passed_connections import PassedConnections
from cedos.proxy.gateway.nodes.redis_link import (
    Calls,
    RedisLink,
    StoreAwayError,
    StoreBusyError,
)
from cedos.proxy.gateway.nodes.redis_target import RedisTarget
from cedos.proxy.gateway.nodes.sealed_values import ADDED_BYTES, SealedValues
from cedos.session.io.idle_sessions import RECORD_BYTES, expires_unix_s
from cedos.session.protocol.crypto import KeyPair, host_id
from cedos.session.protocol.handshake.credentials import CREDENTIALS_BYTES, PEER_KEY, Credentials
from cedos.session.sockets.shared_flows import FlowsHere, FoundFlow, HeardFlow, PassedOn

MOST: Final = 1_000_000
MOST_OF_A_CLIENT: Final = 256
"""Sessions of one node; the rest are known to that node alone. A laptop has one, and one for each of its
programs that fetch."""

_SOON_S: Final = 0.2
_END_S: Final = 1.0
_LOOKS_S: Final = 5.0
_AT_ONCE: Final = 128
_TIDIED: Final = 4_096
_LONGEST_S: Final = 31 * 86_400
_RENEWED_S: Final = 600.0
"""One that is quiet and connected is written again after so long, so that it does not expire."""

_AGAIN_S: Final = 60.0
"""Where Redis has refused a session, all are written again after so long: it may have been full."""

_MOST_UNDONE: Final = 4_096
"""Records that Redis did not delete: each look asks again. More expire by themselves."""

_PLACE_S: Final = 60.0
"""Where a flow lives is known for so long, if it is not written again."""

_ANEW_S: Final = 5.0
"""So long a node that begins anew may take to answer others: they tell nobody that a session is lost."""

_MOST_MARKS: Final = 256
"""Who writes to Redis may put old ones back: each of these is believed once for so long."""

_TOLD_S: Final = 60.0

_WRITE: Final = """
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', KEYS[1]) end
local s = redis.call('HGET', KEYS[1], 's')
if s and ARGV[4] == '0' and (tonumber(s) or 0) > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 's', ARGV[1], 'v', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
"""(DEL only where it is needed: a script that has written is let write more though memory is full.)"""

_HOLD: Final = """
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return 2 end
local s = redis.call('HGET', KEYS[1], 's')
if not s then return 2 end
local more = (tonumber(s) or 0) - tonumber(ARGV[1])
return more > 0 and 0 or more < 0 and 2 or 1
"""
"""2: it is to be written again, as what was written was lost, or is old."""

_READ: Final = """
if redis.call('HSTRLEN', KEYS[1], 'v') > tonumber(ARGV[1]) then return '' end
return redis.call('HGET', KEYS[1], 'v')
"""
_DROP: Final = """
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return redis.call('DEL', KEYS[1]) end
local s = redis.call('HGET', KEYS[1], 's')
if s and (tonumber(s) or 0) <= tonumber(ARGV[1]) then redis.call('DEL', KEYS[1]) end
return 1
"""
_MARK: Final = """
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'string' and kind ~= 'none' then redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[1], 'NX')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local told = redis.pcall('INFO', 'server')
local run = type(told) == 'string' and string.match(told, 'run_id:(%x+)') or ''
return redis.call('GETRANGE', KEYS[1], 0, 63) .. run
"""
"""Who finds another mark than before knows that Redis has lost what it had; where it is another Redis (a
replica that was promoted, a dump that was loaded) it may have lost the last of it."""

_FLOW, _PLACE = "flow", "place"
_MARK_MS: Final = 86_400_000
_VALUE_BYTES: Final = RECORD_BYTES + ADDED_BYTES
_SEEN_BYTES, _PORT_BYTES, _ADDRESS_BYTES = 6, 2, 16
_PLACE_BYTES: Final = _SEEN_BYTES + _PORT_BYTES + _ADDRESS_BYTES

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class NodeFlows:
    """What `cedos.session.sockets.shared_flows.SharedFlows` asks for; `open` first.

    `here`: the own address at which other nodes reach this one; without, flows that live here have no
    place where others would know them.

    Attributes:
        figures: how often what happened.
    """

    def __init__(
        self, target: RedisTarget, me: KeyPair, here: tuple[str, int] | None = None
    ) -> None:
        self._place = here
        self._door: NodeDoor | None = None
        self._link = RedisLink(target, self._back)
        self._values = SealedValues(me, os.urandom)
        self._here: FlowsHere | None = None
        self._to_write: dict[bytes, bytes] = {}
        self._to_drop: dict[bytes, int] = {}
        self._not_dropped: dict[bytes, int] = {}
        self._to_place: dict[bytes, Credentials] = {}
        self._to_leave: dict[bytes, int] = {}
        self._placed_s: dict[bytes, float] = {}
        self._written_s: dict[bytes, float] = {}
        self._of_client: Counter[bytes] = Counter()
        self._client_of: dict[bytes, bytes] = {}
        self._wake = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._ends = asyncio.Event()
        self._all = False
        self._mark = b""
        self._refused_s: float | None = None  # when first, since all were written
        self._tidied: Iterator[bytes] = iter(())
        self._told_s = float("-inf")
        self.figures = NodeFigures()
        self._passed: PassedConnections | None = None
        self._handed_over = False
        self._marks_s: OrderedDict[bytes, float] = OrderedDict()  # when each was seen first

    async def open(self) -> None:
        """Looks whether Redis answers; it may come later. HostError: it cannot listen for nodes."""
        self._passed = PassedConnections(self._values, self.figures)
        if self._place is not None:
            self._door = NodeDoor(self._place, self._values, self.figures)
            self._place = self._door.address
        if await self._link.begin():
            _log.info("shares its clients' sessions with other nodes")

    def begin(self, here: FlowsHere) -> None:
        self._here = here
        loop = asyncio.get_running_loop()
        self._writing = loop.create_task(self._write_on())
        self._looking = loop.create_task(self._look_on())

    @property
    def answers(self) -> bool:
        return not self._link.away

    @property
    def away(self) -> bool:
        return self._link.away

    def accept(
        self,
        heard: Callable[[bytes], HeardFlow],
        take: Callable[[socket.socket, str, bytes], None],
    ) -> None:
        if self._door is not None:
            self._door.begin(heard, take)

    @property
    def most_files(self) -> int:
        """Of connections carried to other nodes two each, and those at the port for nodes."""
        return 2 * MOST_PASSED + (0 if self._place is None else MOST_ASKING)

    @property
    def passed_on(self) -> int:
        """How many clients' connections are carried to other nodes now."""
        return 0 if self._passed is None else len(self._passed)

    async def find(self, flow_id: bytes) -> FoundFlow | None:
        try:
            return await self._find(flow_id, self._link.ask)
        except StoreBusyError:
            return None

    async def _find(
        self, flow_id: bytes, by: Callable[[str, Calls], Awaitable[list[Any]]]
    ) -> FoundFlow:
        flow, place = self._values.name(_FLOW, flow_id), self._values.name(_PLACE, flow_id)
        asked = [(flow, (_VALUE_BYTES,)), (place, (_PLACE_BYTES + ADDED_BYTES,))]
        try:
            value, at = await by(_READ, asked)
        except StoreAwayError:
            return FoundFlow()
        record, found = self._opened(flow, flow_id, value), self._opened_place(place, at)
        seen = 0 if record is None else Credentials.from_bytes(record[:CREDENTIALS_BYTES]).seen
        if found is None or found[1] == self._place:
            return FoundFlow(record, None, seen)
        return FoundFlow(record, found[1], max(seen, found[0]))

    async def pass_on(
        self, place: tuple[str, int], connection: socket.socket, address: str, hello: bytes
    ) -> PassedOn:
        if self._passed is None:
            return PassedOn.NOT_THERE
        passed = await self._passed.pass_on(place, connection, address, hello)
        if passed is PassedOn.NOT_THERE and await self._begins_anew(place):
            connection.close()  # its client tries again
            return PassedOn.DONE
        return passed

    def lives(self, credentials: Credentials) -> None:
        known = self._counted(credentials.flow_id, credentials.peer_key)
        if known and self._place is not None and not self._link.away:
            self._to_leave.pop(credentials.flow_id, None)
            self._to_place[credentials.flow_id] = credentials
            self._wake.set()

    def sleeps(self, credentials: Credentials) -> None:
        flow_id = credentials.flow_id
        self._to_place.pop(flow_id, None)
        placed = self._placed_s.pop(flow_id, None) is not None
        if placed and not self._link.away and not self._handed_over:
            self._to_leave[flow_id] = credentials.seen
            self._wake.set()

    def write(self, record: bytes) -> None:
        counted = self._counted(record[:16], record[PEER_KEY])
        if counted and not self._link.away:  # (all are written when it is back)
            self._to_write[record[:16]] = record
            self._wake.set()

    def came(self, record: bytes) -> None:
        self.figures.taken += 1
        _log.info("a client of another node goes on here")
        self.write(record)
        self.lives(Credentials.from_bytes(record[:CREDENTIALS_BYTES]))

    def forget(self, credentials: Credentials) -> None:
        flow_id = credentials.flow_id
        self.sleeps(credentials)
        counted = self._uncounted(flow_id)
        if counted and not self._handed_over:
            self._to_drop[flow_id] = credentials.seen
            if self._link.away:
                self._keep_undone()
            else:
                self._wake.set()

    async def begins_anew(self) -> None:
        """Tells other nodes that another process goes on in a moment with what lives here.

        Whatever ends in this one from now on is not over.
        """
        self._handed_over = True
        await self._say_anew()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._door is not None:
            await self._door.close()
        if self._passed is not None:
            await self._passed.close()
        await self._write_the_rest()
        if self._handed_over:  # (to pack all may have taken longer than the mark is believed)
            await self._say_anew()
        await self._link.close()

    # Inside

    async def _write_the_rest(self) -> None:
        """What is under way is not cancelled: nobody would write it again."""
        self._ends.set()
        self._wake.set()
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_on())
        await asyncio.wait({self._writing}, timeout=_END_S)
        if not self._writing.done():
            _log.warning("Redis is slow: not all sessions are left to other nodes")
            self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)

    def _anew(self, place: tuple[str, int]) -> str:
        return self._values.name("anew", f"{place[0]} {place[1]}".encode())

    async def _say_anew(self) -> None:
        if self._place is not None:
            with suppress(StoreAwayError):
                name = self._anew(self._place)
                words = 0, self._values.seal(name, b""), int(1000 * _ANEW_S), 1
                await self._link.run(_WRITE, [(name, words)])

    async def _begins_anew(self, place: tuple[str, int]) -> bool:
        name = self._anew(place)
        try:
            (value,) = await self._link.ask(_READ, [(name, (ADDED_BYTES,))])
        except StoreAwayError:
            return False
        except StoreBusyError:
            return True  # as nobody knows: its client tries again
        try:
            if not isinstance(value, bytes) or self._values.open(name, value) != b"":
                return False
        except ValueError:
            self.figures.refused += 1
            return False
        now_s = asyncio.get_running_loop().time()
        first_s = self._marks_s.setdefault(value, now_s)
        if len(self._marks_s) > _MOST_MARKS:
            self._marks_s.popitem(last=False)
        return now_s - first_s < _ANEW_S

    async def _has_begun(self) -> None:
        if self._place is not None:
            with suppress(StoreAwayError):
                await self._link.run(_DROP, [(self._anew(self._place), (0,))])

    def _counted(self, flow_id: bytes, peer_key: bytes) -> bool:
        """Whether there is room for a flow, which is counted from now on."""
        if flow_id in self._client_of:
            return True
        client = host_id(peer_key)
        if len(self._client_of) >= MOST or self._of_client[client] >= MOST_OF_A_CLIENT:
            self.figures.kept_back += 1
            return False
        self._of_client[client] += 1
        self._client_of[flow_id] = client
        return True

    def _uncounted(self, flow_id: bytes) -> bool:
        """It is over; whether it was counted."""
        self._to_write.pop(flow_id, None)
        self._to_place.pop(flow_id, None)
        self._written_s.pop(flow_id, None)
        self._placed_s.pop(flow_id, None)
        client = self._client_of.pop(flow_id, None)
        if client is None:
            return False
        self._of_client[client] -= 1
        if not self._of_client[client]:
            del self._of_client[client]
        return True

    def _back(self) -> None:
        self._all = True
        self._wake.set()

    async def _write_on(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            with suppress(TimeoutError):  # what changes again meanwhile is one write
                async with asyncio.timeout(_SOON_S):
                    await self._ends.wait()
            last = self._ends.is_set()
            try:
                await self._flush()
                if self._all:
                    self._all = False
                    await self._write_all()
            except StoreAwayError:
                self._to_write.clear()
                self._keep_undone()
                self._to_place.clear()
                self._to_leave.clear()
            if last:
                return

    async def _flush(self) -> None:
        while self._to_drop:
            dropped = dict(islice(self._to_drop.items(), _AT_ONCE))
            done = await self._drop(dropped, _FLOW)
            for (flow_id, seen), result in zip(dropped.items(), done, strict=True):
                self._to_drop.pop(flow_id, None)
                if isinstance(result, Exception):
                    self._not_dropped[flow_id] = seen
        self._keep_undone()
        while self._to_leave:  # (places expire soon by themselves)
            left = dict(islice(self._to_leave.items(), _AT_ONCE))
            for flow_id in left:
                del self._to_leave[flow_id]
            await self._drop(left, _PLACE)
        while self._to_place:
            living = [self._to_place.pop(each) for each in list(islice(self._to_place, _AT_ONCE))]
            await self._put_places(living)
        while self._to_write:
            records = [self._to_write.pop(each) for each in list(islice(self._to_write, _AT_ONCE))]
            await self._put(records)

    async def _drop(self, flows: dict[bytes, int], kind: str) -> list[Any]:
        return await self._run(_DROP, [(each, (seen,)) for each, seen in flows.items()], kind)

    def _keep_undone(self) -> None:
        """What is to be deleted has to wait."""
        self._not_dropped |= self._to_drop
        self._to_drop.clear()
        while len(self._not_dropped) > _MOST_UNDONE:
            del self._not_dropped[next(iter(self._not_dropped))]

    def _drop_again(self) -> None:
        if self._not_dropped and not self._link.away:
            self._to_drop |= self._not_dropped
            self._not_dropped.clear()
            self._wake.set()

    async def _write_all(self) -> None:
        """Redis may have lost what it had."""
        assert self._here is not None
        self._placed_s.clear()
        for each in self._here.living():
            self.lives(each)
        written = self._here.written()
        while records := list(islice(written, _AT_ONCE)):
            waits = self._to_write
            shared = [each for each in records if self._counted(each[:16], each[PEER_KEY])]
            await self._put(each for each in shared if each[:16] not in waits)

    async def _put(self, records: Iterable[bytes], *, over: bool = False) -> None:
        """`over`: whatever stands there."""
        now, calls = time.time(), []
        for record in records:
            left_s = min(expires_unix_s(record) - now, _LONGEST_S)
            if left_s > 0:
                seen = Credentials.from_bytes(record[:CREDENTIALS_BYTES]).seen
                name = self._values.name(_FLOW, record[:16])
                words = seen, self._values.seal(name, record), int(1000 * left_s), int(over)
                calls.append((record[:16], words, record))
        done = await self._run(_WRITE, [(flow_id, words) for flow_id, words, _ in calls])
        loop_s = asyncio.get_running_loop().time()
        for (flow_id, _, record), result in zip(calls, done, strict=True):
            if result == 1:
                self.figures.written += 1
                if flow_id in self._client_of:
                    self._written_s[flow_id] = loop_s
            elif isinstance(result, Exception) and self._refused_s is None:
                self._refused_s = loop_s
            elif result == 0 and not await self._let_go(record):
                await self._put([record], over=True)

    async def _put_places(self, living: list[Credentials], *, over: bool = False) -> None:
        """That flows live here; `over`: whatever stands there."""
        if self._place is None:
            return
        host, port = self._place
        place = port.to_bytes(_PORT_BYTES, "big") + packed_address(host)
        calls = []
        for each in living:
            name, seen = self._values.name(_PLACE, each.flow_id), each.seen
            sealed = self._values.seal(name, seen.to_bytes(_SEEN_BYTES, "big") + place)
            calls.append((each.flow_id, (seen, sealed, int(1000 * _PLACE_S), int(over))))
        done = await self._run(_WRITE, calls, _PLACE)
        now_s = asyncio.get_running_loop().time()
        for each, result in zip(living, done, strict=True):
            if result == 1 and each.flow_id in self._client_of:
                self._placed_s[each.flow_id] = now_s
            elif result == 0 and not over and not await self._lives_elsewhere(each):
                await self._put_places([each], over=True)

    async def _lives_elsewhere(self, mine: Credentials) -> bool:
        """Whether it was a node that wrote, of a flow that lives here, that it lives at another one."""
        name = self._values.name(_PLACE, mine.flow_id)
        (value,) = await self._link.run(_READ, [(name, (_PLACE_BYTES + ADDED_BYTES,))])
        found = self._opened_place(name, value)
        return found is not None and found[0] > mine.seen

    async def _run(
        self, script: str, calls: list[tuple[bytes, tuple[Any, ...]]], kind: str = _FLOW
    ) -> list[Any]:
        if not calls:
            return []
        named = [(self._values.name(kind, flow_id), words) for flow_id, words in calls]
        done = await self._link.run(script, named)
        for each in done:
            if isinstance(each, Exception):
                self._tell("Redis refuses what a node wants of it", str(each))
        return done

    async def _let_go(self, record: bytes) -> bool:
        """Another node seems to have a client that is here: whether it has."""
        flow_id = record[:16]
        found = (await self._find(flow_id, self._link.run)).record
        if self._link.away:
            raise StoreAwayError
        mine = Credentials.from_bytes(record[:CREDENTIALS_BYTES]).seen
        if found is None or Credentials.from_bytes(found[:CREDENTIALS_BYTES]).seen <= mine:
            return False
        self._given(flow_id)
        return True

    def _given(self, flow_id: bytes) -> None:
        assert self._here is not None
        self.figures.given += 1
        self._here.taken(flow_id)

    async def _look_on(self) -> None:
        """Whether Redis has what it had, and those that live here are still this node's."""
        assert self._here is not None
        await self._has_begun()
        while True:
            living = [each for each in self._here.living() if each.flow_id in self._client_of]
            try:
                await self._look_for_mark()
                for first in range(0, len(living), _AT_ONCE):
                    await self._look(living[first : first + _AT_ONCE])
            except StoreAwayError:
                pass
            self._drop_again()
            self._tidy(self._here)
            await asyncio.sleep(_LOOKS_S)

    def _tidy(self, here: FlowsHere) -> None:
        """Counts no more what has expired while it slept; a portion at a time.

        (One that lives is not written down where the disk is full.)
        """
        some = list(islice(self._tidied, _TIDIED))
        if not some:
            self._tidied = iter(list(self._client_of))
        living = {each.flow_id for each in here.living()}
        for flow_id in some:
            if flow_id not in living and not here.knows(flow_id):
                self._uncounted(flow_id)

    async def _look_for_mark(self) -> None:
        name = self._values.name("mark", b"")
        (mark,) = await self._link.run(_MARK, [(name, (os.urandom(16), _MARK_MS))])
        if not isinstance(mark, bytes):
            return  # it takes nothing now
        now_s = asyncio.get_running_loop().time()
        again = self._refused_s is not None and now_s - self._refused_s > _AGAIN_S
        if mark != self._mark or again:
            self._mark, self._refused_s = mark, None
            self._back()

    async def _look(self, living: list[Credentials]) -> None:
        assert self._here is not None
        done = await self._run(_HOLD, [(each.flow_id, (each.seen,)) for each in living])
        now_s = asyncio.get_running_loop().time()
        for credentials, result in zip(living, done, strict=True):
            flow_id = credentials.flow_id
            if result == 0:
                found = (await self._find(flow_id, self._link.run)).record
                seen = (
                    0 if found is None else Credentials.from_bytes(found[:CREDENTIALS_BYTES]).seen
                )
                if seen > credentials.seen:
                    self._given(flow_id)
                    continue
            if result != 1 or now_s - self._written_s.get(flow_id, 0.0) > _RENEWED_S:
                self._here.renew(flow_id)
            if now_s - self._placed_s.get(flow_id, float("-inf")) > _PLACE_S / 3:
                self.lives(credentials)

    def _opened(self, name: str, flow_id: bytes, value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            if not isinstance(value, bytes):
                raise ValueError("it is no value of a node's")
            record = self._values.open(name, value)
            if len(record) != RECORD_BYTES or record[:16] != flow_id:
                raise ValueError("it is no session of this version")
            Credentials.from_bytes(record[:CREDENTIALS_BYTES])
        except ValueError as error:
            self.figures.refused += 1
            self._tell("what lies in Redis is not a node's", str(error))
            return None
        return record

    def _opened_place(self, name: str, value: Any) -> tuple[int, tuple[str, int]] | None:
        """How many attempts a node had seen that wrote where a flow lives, and where."""
        if value is None:
            return None
        try:
            if not isinstance(value, bytes):
                raise ValueError("it is no value of a node's")
            place = self._values.open(name, value)
            if len(place) != _PLACE_BYTES:
                raise ValueError("it is no place of this version")
        except ValueError as error:
            self.figures.refused += 1
            self._tell("what lies in Redis is not a node's", str(error))
            return None
        seen, port = place[:_SEEN_BYTES], place[_SEEN_BYTES:-_ADDRESS_BYTES]
        host = shown_address(place[-_ADDRESS_BYTES:])
        return int.from_bytes(seen, "big"), (host, int.from_bytes(port, "big"))

    def _tell(self, what: str, why: str) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s > _TOLD_S:
            self._told_s = now_s
            _log.warning(what, why=why)
