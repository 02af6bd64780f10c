"""Sessions that sleep: their credentials and positions in a file, found by flow id, woken when needed.

`IdleFile` keeps records by a 16-byte key in one file that survives its process. The file is mapped, and
an index in memory finds a record's slot by open addressing. Measured with a million records of 208
bytes: a dict of bytes takes 350 MB, an index in a dict and the records in the file 140 MB, arrays of
slot numbers 8 MB; reading a record through the mapping takes half the time of `pread`. The index is
built at each start, from one pass over the file. It has a thousand small tables, each of which grows by
itself: the growth of one large table would block the program for seconds.

A record is written before its state, and carries a check sum. One that was half written when the process
was killed does not count, nor does one whose session was awake: its application was at work. The kernel
writes the file when it likes, so no record outlives a power failure: the file names the boot it is of,
and `close` says instead that all of it is on the disk.
"""

import fcntl
import mmap
import os
import struct
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final
from zlib import crc32

from cedos.errors import SessionError
from cedos.kernel import own_file
from cedos.logs import get_logger
from cedos.session.protocol.handshake.credentials import CREDENTIALS_BYTES, PEER_KEY, Credentials
from cedos.session.protocol.handshake.limits import HostCounts
from cedos.session.protocol.idle_record import IDLE_BYTES, IdleRecord, pack, unpack_session
from cedos.session.protocol.life import SessionLimits
from cedos.session.protocol.room import ReplayMemory
from cedos.session.protocol.schedulers.interface import Scheduler
from cedos.session.protocol.session import Session

KEY_BYTES: Final = 16
_MAGIC: Final = b"cedosidle1"
_HEADER: Final = struct.Struct(">10sI16s34x")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_WHOLE: Final = b"\xff" * 16  # instead of a boot: the file was closed
_SLOT: Final = struct.Struct(">BI")  # state, check sum; the record follows, its key first
_FIRST_SLOTS: Final = 4_096
_STEP_SLOTS: Final = 16_384  # the file grows by this many slots: a few milliseconds of zeros
# The low bits of a key's hash choose its table, the others the place in the table.
_PART_BITS: Final = 10
_PART: Final = (1 << _PART_BITS) - 1
_LEAST_BITS: Final = 3
_READ_SLOTS: Final = 8_192
# Marks a removed entry in a table: a search goes on behind it, and an insertion reuses it.
_GONE: Final = 0xFFFF_FFFF


class RecordState(IntEnum):
    """The state of a record's session."""

    FREE = 0
    ASLEEP = 1
    AWAKE = 2  # it lives in this process; the next one does not know it


class IdleFile:
    """Fixed-size records; the first 16 bytes of each are its key. The file is for its owner alone.

    SessionError: the file is something else, holds records of another size, may be read by others, or
    is in use.
    """

    def __init__(self, path: Path, record_bytes: int) -> None:
        self._path = path
        self._record_bytes = record_bytes
        self._stride = _SLOT.size + record_bytes
        with suppress(FileExistsError):
            os.close(own_file.create(path))
        self._descriptor = own_file.open_own(path, os.O_RDWR)
        self._claim()
        size = os.fstat(self._descriptor).st_size
        if size == 0:
            try:
                self._name(bytes(16))
                size = self._grow_to(_FIRST_SLOTS)
            except OSError:
                os.close(self._descriptor)
                raise
        boot = bytes.fromhex(_BOOT.read_text().strip().replace("-", ""))
        counts = self._check() in (boot, _WHOLE)
        # A full disk, or the process's end, may leave a part of a slot at the file's end.
        self._slots = (size - _HEADER.size) // self._stride
        self._map = mmap.mmap(self._descriptor, size)
        self._free = array("I")
        self._tables: list[array[int]] = []
        self._filled = array("I")  # of each table: its entries, removed ones included
        self._used = 0
        self._load(counts=counts)
        self._name(boot)

    def __len__(self) -> int:
        return self._used

    def put(self, record: bytes, state: RecordState) -> None:
        """Add a record, or replace the one with its key."""
        if len(record) != self._record_bytes:
            raise ValueError(f"a record of {len(record)} bytes; right are {self._record_bytes}")
        key = record[:KEY_BYTES]
        # A record of this key is replaced in its slot; a new one takes a free slot.
        found = self._find(key)
        if found is None:
            if not self._free:
                self._extend()
            slot = self._free.pop()
            self._insert(key, slot)
            self._used += 1
        else:
            table, at = found
            slot = table[at]
        start = _HEADER.size + (slot - 1) * self._stride
        body = start + _SLOT.size
        # The state comes last: until then the slot is free, also for a process that starts after a crash.
        self._map[start] = RecordState.FREE
        self._map[body : body + self._record_bytes] = record
        self._map[start:body] = _SLOT.pack(state, crc32(record))

    def get(self, key: bytes) -> bytes | None:
        # As `_find`, but with one access to the file: it is asked at each resumption.
        hashed = hash(key)
        table, mapped, stride = self._tables[hashed & _PART], self._map, self._stride
        mask = len(table) - 1
        at = hashed >> _PART_BITS & mask
        first = _HEADER.size + _SLOT.size - stride
        size = self._record_bytes
        while slot := table[at]:
            if slot != _GONE:
                start = first + slot * stride
                record = mapped[start : start + size]  # the one access that misses the caches
                if record.startswith(key):
                    return record
            at = (at + 1) & mask
        return None

    def remove(self, key: bytes) -> bool:
        """Forget a record and erase its bytes; return whether there was one."""
        found = self._find(key)
        if found is None:
            return False
        table, at = found
        slot = table[at]
        start = _HEADER.size + (slot - 1) * self._stride
        # Erase the secrets, not only the entry.
        self._map[start : start + self._stride] = bytes(self._stride)
        table[at] = _GONE
        self._used -= 1
        self._free.append(slot)
        return True

    def scan(self, after: int, count: int) -> tuple[list[bytes], int]:
        """Return the records in up to `count` slots behind the slot `after`, and the last slot (0: end).

        A caller goes through the whole file in such portions, and blocks the loop for none of them
        for long.
        """
        last = min(after + count, self._slots)
        block = self._map[_HEADER.size + after * self._stride : _HEADER.size + last * self._stride]
        found = [
            block[start + _SLOT.size : start + self._stride]
            for start in range(0, len(block), self._stride)
            if block[start]
        ]
        return found, last if last < self._slots else 0

    def mark_awake(self, key: bytes) -> None:
        """Let the record of a key, if there is one, not count for the next process."""
        if (found := self._find(key)) is not None:
            table, at = found
            self._map[_HEADER.size + (table[at] - 1) * self._stride] = RecordState.AWAKE

    def close(self) -> None:
        """Close the file; what is in it outlives a power failure."""
        self._map.flush()
        self._map.close()
        self._name(_WHOLE)
        os.close(self._descriptor)

    # Inside

    def _claim(self) -> None:
        """Lock the file: it is for its owner alone, and for one process at a time."""
        why = ""
        if os.fstat(self._descriptor).st_mode & 0o077:
            why = "holds secrets and others may read it; chmod it to 600"
        else:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                why = "is in use by another program"
        if why:
            os.close(self._descriptor)
            raise SessionError(f"{self._path} {why}")

    def _name(self, boot: bytes) -> None:
        """Write which boot the file is of, to the disk."""
        os.pwrite(self._descriptor, _HEADER.pack(_MAGIC, self._record_bytes, boot), 0)
        os.fsync(self._descriptor)

    def _check(self) -> bytes:
        """Return which boot the file is of. SessionError: it is another file."""
        head = os.pread(self._descriptor, _HEADER.size, 0)
        *right, boot = _HEADER.unpack(head) if len(head) == _HEADER.size else (0, 0, b"")
        if right != [_MAGIC, self._record_bytes]:
            os.close(self._descriptor)
            raise SessionError(
                f"{self._path} holds no idle sessions of this version; move it away to start anew"
            )
        return bytes(boot)

    def _grow_to(self, slots: int) -> int:
        size = _HEADER.size + slots * self._stride
        # Allocate the blocks now: on a full disk, a write to a hole of the mapping ends in SIGBUS.
        os.posix_fallocate(self._descriptor, 0, size)
        return size

    def _extend(self) -> None:
        slots = self._slots + _STEP_SLOTS
        self._map.resize(self._grow_to(slots))
        self._free.extend(range(slots, self._slots, -1))
        self._slots = slots

    def _load(self, *, counts: bool) -> None:
        """Read the file once: build the index, find free slots, erase what does not count.

        `counts`: whether records count at all.
        """
        stride, record_bytes = self._stride, self._record_bytes
        nothing = bytes(stride)
        # The tables begin with room for an even share of all slots.
        each = _table((self._slots >> _PART_BITS) + 1)
        self._tables = [each[:] for _ in range(1 << _PART_BITS)]
        self._filled = array("I", bytes(4 << _PART_BITS))
        for first in range(0, self._slots, _READ_SLOTS):
            count = min(_READ_SLOTS, self._slots - first)
            block = os.pread(self._descriptor, count * stride, _HEADER.size + first * stride)
            for at in range(count):
                start = at * stride
                state, check = _SLOT.unpack_from(block, start)
                body = start + _SLOT.size
                # Else its slot is free. The state is written last.
                asleep = counts and state == RecordState.ASLEEP
                if asleep and crc32(block[body : body + record_bytes]) == check:
                    self._insert(block[body : body + KEY_BYTES], first + at + 1)
                    self._used += 1
                else:
                    if block[start : start + stride] != nothing:
                        begin = _HEADER.size + (first + at) * stride
                        self._map[begin : begin + stride] = nothing
                    self._free.append(first + at + 1)
        # Slots are taken from the end of the list: the lowest one first.
        self._free.reverse()

    def _find(self, key: bytes) -> "tuple[array[int], int] | None":
        """Return the key's table, and where in it the key's slot is."""
        # Python keys its hashes in each process, so that no peer can choose keys that collide.
        hashed = hash(key)
        table, mapped, stride = self._tables[hashed & _PART], self._map, self._stride
        mask = len(table) - 1
        at = hashed >> _PART_BITS & mask
        first = _HEADER.size + _SLOT.size - stride
        # Linear probing: an empty entry ends the search.
        while slot := table[at]:
            if slot != _GONE:
                start = first + slot * stride
                if mapped[start : start + KEY_BYTES] == key:
                    return table, at
            at = (at + 1) & mask
        return None

    def _insert(self, key: bytes, slot: int) -> None:
        part = hash(key) & _PART
        # At most two thirds full, or searches get long.
        if (self._filled[part] + 1) * 3 > len(self._tables[part]) * 2:
            self._rebuild(part)
        self._enter(key, slot)

    def _rebuild(self, part: int) -> None:
        """Rebuild a table without removed records and with room for an eighth more.

        Without that room a table that is nearly full would be rebuilt by every put after a remove.
        """
        slots = [each for each in self._tables[part] if each not in (0, _GONE)]
        self._tables[part] = _table(len(slots) * 9 // 8 + 1)
        self._filled[part] = 0
        for each in slots:
            body = _HEADER.size + (each - 1) * self._stride + _SLOT.size
            self._enter(self._map[body : body + KEY_BYTES], each)

    def _enter(self, key: bytes, slot: int) -> None:
        hashed = hash(key)
        table = self._tables[hashed & _PART]
        mask = len(table) - 1
        at = hashed >> _PART_BITS & mask
        while table[at] not in (0, _GONE):
            at = (at + 1) & mask
        self._filled[hashed & _PART] += table[at] == 0
        table[at] = slot

    def __iter__(self) -> Iterator[bytes]:
        at = -1
        while at:
            found, at = self.scan(max(at, 0), _READ_SLOTS)
            yield from found


def _table(used: int) -> "array[int]":
    """Return an empty table that is at most two thirds full with so many, and half full on average."""
    return array("I", bytes(4 << max(_LEAST_BITS, (3 * used // 2).bit_length())))


# The bytes that the application may store with an idle session.
STATE_BYTES: Final = 8

RECORD_BYTES: Final = CREDENTIALS_BYTES + IDLE_BYTES + STATE_BYTES
_IDLE: Final = slice(CREDENTIALS_BYTES, CREDENTIALS_BYTES + IDLE_BYTES)
_SCAN_SLOTS: Final = 2_000

_log = get_logger(__name__)


class IdleSessions:
    """The idle sessions of one program.

    A session that is awake keeps its place here, but not beyond this process: the next one would go on
    where a request may have begun. Its peer is told so, with proof.
    """

    def __init__(self, path: Path, most: int | None = None) -> None:
        self._file = IdleFile(path, RECORD_BYTES)
        self._most = most
        self._scanned_to = 0
        self._hosts = HostCounts()
        for record in self._file:
            self._hosts.add(record[PEER_KEY])

    def __len__(self) -> int:
        return len(self._file)

    def find(self, flow_id: bytes) -> Credentials | None:
        record = self.record(flow_id)
        return None if record is None else Credentials.from_bytes(record[:CREDENTIALS_BYTES])

    def record(self, flow_id: bytes) -> bytes | None:
        """Return a session's record, which begins with its credentials, or None."""
        return self._file.get(flow_id)

    def records(self) -> Iterator[bytes]:
        return iter(self._file)

    def of_host(self, peer_key: bytes) -> int:
        """Return how many sessions of a key's holder are here, asleep or awake, or a few more."""
        return self._hosts.of(peer_key)

    def sleep(
        self,
        credentials: Credentials,
        session: Session,
        now: float,
        unix_s: float,
        state: bytes = b"",
    ) -> bool:
        """Write a session down if it is idle; return whether it was, and had room.

        The caller may forget it then. `state`: its application's, up to `STATE_BYTES`.
        """
        idle = pack(session, now, unix_s)
        if idle is None:
            return False
        return self._put(_record(credentials, idle, state), RecordState.ASLEEP)

    def note(self, credentials: Credentials, keep_alive_s: int, unix_s: float) -> None:
        """Give a new session a place."""
        record = _record(credentials, IdleRecord.at_the_beginning(keep_alive_s, unix_s), b"")
        self._put(record, RecordState.AWAKE)

    def wake(
        self,
        flow_id: bytes,
        scheduler: Scheduler,
        now: float,
        unix_s: float,
        *,
        limits: SessionLimits,
        memory: ReplayMemory | None = None,
    ) -> tuple[Session, bytes] | None:
        """Return the session of a flow, as it fell asleep, and its application's state.

        None: there is none, or it has expired.
        """
        record = self._file.get(flow_id)
        if record is None:
            return None
        idle = IdleRecord.from_bytes(record[_IDLE])
        if idle.expires_unix_s <= unix_s:
            self.forget(flow_id)
            return None
        self._put(record, RecordState.AWAKE)
        session = unpack_session(idle, scheduler, now, unix_s, limits=limits, memory=memory)
        return session, record[_IDLE.stop :]

    def withdraw(self, flow_id: bytes) -> None:
        """Note that a session is awake, before anything is done for it."""
        self._file.mark_awake(flow_id)

    def keep_only(self, allow: Callable[[bytes], bool]) -> None:
        """Forget the sessions of holders of other public keys."""
        for record in list(self._file):
            if not allow(record[PEER_KEY]):
                self.forget(record[:16])

    def forget(self, flow_id: bytes) -> bool:
        record = self._file.get(flow_id)
        if record is None:
            return False
        self._hosts.add(record[PEER_KEY], -1)
        return self._file.remove(flow_id)

    def expire(self, unix_s: float, living: Callable[[bytes], bool]) -> int:
        """Forget the expired ones of the next 2,000 sessions; return how many.

        `living` says of a flow id whether its session is awake.
        """
        records, self._scanned_to = self._file.scan(self._scanned_to, _SCAN_SLOTS)
        gone = 0
        for record in records:
            expired = IdleRecord.from_bytes(record[_IDLE]).expires_unix_s <= unix_s
            if expired and not living(record[:16]):
                gone += self.forget(record[:16])
        return gone

    def _put(self, record: bytes, state: RecordState) -> bool:
        before = len(self._file)
        # Beyond the limit, new ones stay in memory.
        if self._most is not None and before >= self._most and self._file.get(record[:16]) is None:
            return False
        try:
            self._file.put(record, state)
        # The disk is full: the session stays in memory.
        except OSError as error:
            _log.warning("a session is not written down", why=error.strerror)
            return False
        self._hosts.add(record[PEER_KEY], len(self._file) - before)
        return True

    def close(self) -> None:
        self._file.close()


def _record(credentials: Credentials, idle: IdleRecord, state: bytes) -> bytes:
    return credentials.to_bytes() + idle.to_bytes() + state.ljust(STATE_BYTES, b"\0")
