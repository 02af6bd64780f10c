"""The flows of all nodes of a gateway, in Redis: written when one falls quiet, read by the others.

Each is a hash: `s`, how many attempts of its client its node has seen, and `v`, its sealed record. A node
writes only where it has seen as many as stand there. A client that goes on at another node makes one
attempt more, so that what the first one writes then is refused: it looks, and lets go of the client.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import structlog

from cedos.proxy.gateway.nodes.node_figures import NodeFigures
from cedos.proxy.gateway.nodes.redis_link import RedisLink, StoreAwayError
from cedos.proxy.gateway.nodes.redis_target import RedisTarget
from cedos.proxy.gateway.nodes.sealed_values import ADDED_BYTES, SealedValues
from cedos.session.io.idle_sessions import RECORD_BYTES, expires_unix_s
from cedos.session.protocol.crypto import KeyPair, host_id
from cedos.session.protocol.handshake.credentials import CREDENTIALS_BYTES, PEER_KEY, Credentials
from cedos.session.sockets.shared_flows import FlowsHere

MOST: Final = 1_000_000
MOST_OF_A_CLIENT: Final = 256
"""Sessions of one node; the rest are known to that node alone. A laptop has one, and one for each of its
programs that fetch."""

_SOON_S: Final = 0.2
_LOOKS_S: Final = 5.0
_AT_ONCE: Final = 256
_TIDIED: Final = 4_096
_LONGEST_S: Final = 31 * 86_400
_RENEWED_S: Final = 600.0
"""One that is quiet and connected is written again after so long, so that it does not expire."""

_TOLD_S: Final = 60.0

_WRITE: Final = """
local s = redis.call('HGET', KEYS[1], 's')
if s and ARGV[4] == '0' and (tonumber(s) or 0) > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 's', ARGV[1], 'v', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
_HOLD: Final = """
local s = redis.call('HGET', KEYS[1], 's')
if not s then return 2 end
if (tonumber(s) or 0) > tonumber(ARGV[1]) then return 0 end
return 1
"""
_READ: Final = """
if redis.call('HSTRLEN', KEYS[1], 'v') > tonumber(ARGV[1]) then return '' end
return redis.call('HGET', KEYS[1], 'v')
"""
_DROP: Final = """
local s = redis.call('HGET', KEYS[1], 's')
if s and (tonumber(s) or 0) <= tonumber(ARGV[1]) then redis.call('DEL', KEYS[1]) end
return 1
"""
_MARK: Final = """
redis.call('SET', KEYS[1], ARGV[1], 'NX')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('GET', KEYS[1])
"""
"""Who finds another mark than before knows that Redis has lost what it had."""

_FLOW: Final = "flow"
_MARK_MS: Final = 86_400_000
_VALUE_BYTES: Final = RECORD_BYTES + ADDED_BYTES

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class NodeFlows:
    """What `cedos.session.sockets.shared_flows.SharedFlows` asks for; `open` first.

    Attributes:
        figures: how often what happened.
    """

    def __init__(self, target: RedisTarget, me: KeyPair) -> None:
        self._link = RedisLink(target, self._back)
        self._values = SealedValues(me, os.urandom)
        self._here: FlowsHere | None = None
        self._to_write: dict[bytes, bytes] = {}
        self._to_drop: dict[bytes, int] = {}
        self._written_s: dict[bytes, float] = {}
        self._of_client: Counter[bytes] = Counter()
        self._client_of: dict[bytes, bytes] = {}
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._all = False
        self._mark = b""
        self._tidied: Iterator[bytes] = iter(())
        self._told_s = float("-inf")
        self.figures = NodeFigures()

    async def open(self) -> None:
        """Looks whether Redis answers; it may come later."""
        if await self._link.begin():
            _log.info("shares its clients' sessions with other nodes")

    def begin(self, here: FlowsHere) -> None:
        self._here = here
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._write_on()), loop.create_task(self._look_on())]

    @property
    def answers(self) -> bool:
        return not self._link.away

    @property
    def away(self) -> bool:
        return self._link.away

    async def find(self, flow_id: bytes) -> bytes | None:
        name = self._values.name(_FLOW, flow_id)
        try:
            (value,) = await self._link.run(_READ, [(name, (_VALUE_BYTES,))])
        except StoreAwayError:
            return None
        return self._opened(name, flow_id, value)

    def write(self, record: bytes) -> None:
        if self._counted(record) and not self._link.away:  # (all are written when it is back)
            self._to_write[record[:16]] = record
            self._wake.set()

    def came(self, record: bytes) -> None:
        self.figures.taken += 1
        _log.info("a client of another node goes on here")
        self.write(record)

    def forget(self, credentials: Credentials) -> None:
        flow_id = credentials.flow_id
        if self._uncounted(flow_id) and not self._link.away:
            self._to_drop[flow_id] = credentials.seen
            self._wake.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(StoreAwayError):
            await self._flush()
        await self._link.close()

    # Inside

    def _counted(self, record: bytes) -> bool:
        """Whether there is room for a flow, which is counted from now on."""
        flow_id = record[:16]
        if flow_id in self._client_of:
            return True
        client = host_id(record[PEER_KEY])
        if len(self._client_of) >= MOST or self._of_client[client] >= MOST_OF_A_CLIENT:
            self.figures.kept_back += 1
            return False
        self._of_client[client] += 1
        self._client_of[flow_id] = client
        return True

    def _uncounted(self, flow_id: bytes) -> bool:
        """It is over; whether it was counted."""
        self._to_write.pop(flow_id, None)
        self._written_s.pop(flow_id, None)
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
            await asyncio.sleep(_SOON_S)  # what changes again meanwhile is one write
            try:
                await self._flush()
                if self._all:
                    self._all = False
                    await self._write_all()
            except StoreAwayError:
                self._to_write.clear()
                self._to_drop.clear()

    async def _flush(self) -> None:
        while self._to_drop:
            dropped = dict(islice(self._to_drop.items(), _AT_ONCE))
            for flow_id in dropped:
                del self._to_drop[flow_id]
            await self._run(_DROP, [(each, (seen,)) for each, seen in dropped.items()])
        while self._to_write:
            records = [self._to_write.pop(each) for each in list(islice(self._to_write, _AT_ONCE))]
            await self._put(records)

    async def _write_all(self) -> None:
        """Redis may have lost what it had."""
        assert self._here is not None
        written = self._here.written()
        while records := list(islice(written, _AT_ONCE)):
            waits = self._to_write
            await self._put([r for r in records if r[:16] not in waits and self._counted(r)])

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
            elif result == 0 and not await self._let_go(record):
                await self._put([record], over=True)

    async def _run(self, script: str, calls: list[tuple[bytes, tuple[Any, ...]]]) -> list[Any]:
        if not calls:
            return []
        named = [(self._values.name(_FLOW, flow_id), words) for flow_id, words in calls]
        done = await self._link.run(script, named)
        for each in done:
            if isinstance(each, Exception):
                self._tell("Redis refuses what a node wants of it", str(each))
        return done

    async def _let_go(self, record: bytes) -> bool:
        """Another node seems to have a client that is here: whether it has."""
        flow_id = record[:16]
        found = await self.find(flow_id)
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
        while True:
            living = [each for each in self._here.living() if each.flow_id in self._client_of]
            try:
                await self._look_for_mark()
                for first in range(0, len(living), _AT_ONCE):
                    await self._look(living[first : first + _AT_ONCE])
            except StoreAwayError:
                pass
            self._tidy(self._here)
            await asyncio.sleep(_LOOKS_S)

    def _tidy(self, here: FlowsHere) -> None:
        """Counts no more what has expired while it slept; a portion at a time."""
        some = list(islice(self._tidied, _TIDIED))
        if not some:
            self._tidied = iter(list(self._client_of))
        for flow_id in some:
            if not here.knows(flow_id):
                self._uncounted(flow_id)

    async def _look_for_mark(self) -> None:
        name = self._values.name("mark", b"")
        (mark,) = await self._link.run(_MARK, [(name, (os.urandom(16), _MARK_MS))])
        if isinstance(mark, bytes) and mark != self._mark:
            self._mark = mark
            self._back()

    async def _look(self, living: list[Credentials]) -> None:
        assert self._here is not None
        done = await self._run(_HOLD, [(each.flow_id, (each.seen,)) for each in living])
        now_s = asyncio.get_running_loop().time()
        for credentials, result in zip(living, done, strict=True):
            flow_id = credentials.flow_id
            if result == 0:
                found = await self.find(flow_id)
                seen = (
                    0 if found is None else Credentials.from_bytes(found[:CREDENTIALS_BYTES]).seen
                )
                if seen > credentials.seen:
                    self._given(flow_id)
                    continue
            if result != 1 or now_s - self._written_s.get(flow_id, 0.0) > _RENEWED_S:
                self._here.renew(flow_id)

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

    def _tell(self, what: str, why: str) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s > _TOLD_S:
            self._told_s = now_s
            _log.warning(what, why=why)
