"""The files that a gateway keeps for its clients: a folder for each client, limits for each and for all.

A kept body lies beside its record, ID.json. One process uses the folder at a time. Two accounts are
kept, of which one client has half at most (of what others leave, where bodies make no room for others):
the disk's (bodies and records, in whole blocks) and the memory's (records, and what each costs beside).
What a client has announced, and not brought yet, takes room from itself alone.
"""

import asyncio
import fcntl
import os
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from cedos.apps.files.partial import files_of
from cedos.errors import TransferError
from cedos.kernel import own_file
from cedos.session.io.driver import current
from cedos.session.unhurried_clock import UnhurriedClock

LONGEST_RECORD: Final = 1 << 17
THREADS: Final = 2
# The memory for the records of all clients.
MEMORY_BYTES: Final = 32 << 20

_EACH_BYTES: Final = 4_096  # of memory, beside its record
_LATER_BYTES: Final = 1_024  # of a record: its body's digest, say, and what became of it
_BLOCK: Final = 4_096
# Bytes of the disk that stay free for the host: its services, and the list of invited clients.
_KEEP_FREE: Final = 100_000_000
_TIDIED_EVERY_S: Final = 60.0
_CLIENT: Final = re.compile(r"[0-9a-f]{32}")
# The disk of 1 GB is free after 0.3 s on ext4, 0.6 s on tmpfs.
_LARGE: Final = 16 << 20
_freeing: Final = ThreadPoolExecutor(1, "freeing")
_not_freed: Final[dict[object, int]] = {}  # bytes of the disk, of each file that was removed

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class KeptBody(Protocol):
    """A body with its record."""

    path: Path  # of the body; its record is beside it
    record: Any  # a struct with `id`, which is the body's name

    @property
    def held_bytes(self) -> int:
        """Bytes of the disk that its body takes, or will take."""

    @property
    def coming_bytes(self) -> int:
        """Of these, bytes that its client will bring."""

    @property
    def used_unix_s(self) -> float:
        """When its client last used it."""

    @property
    def may_make_room(self) -> bool:
        """True if the body may be removed to make room for others."""

    def expired(self, now_unix_s: float) -> bool:
        """Tell whether it has waited for its client for too long."""


Kept = TypeVar("Kept", bound=KeptBody)


class Cost(NamedTuple):
    """Bytes on the disk and in memory; `coming`: of those on the disk, what is not there yet."""

    disk: int
    memory: int
    coming: int = 0

    def beside(self, old: "Cost") -> "Cost":
        """Return what this costs more than an older one."""
        return Cost(self.disk - old.disk, self.memory - old.memory, self.coming - old.coming)


class _Account:
    """The costs of some bodies; `here`: bytes that are on the disk now."""

    def __init__(self) -> None:
        self.disk = self.memory = self.coming = 0

    @property
    def here(self) -> int:
        return self.disk - self.coming

    def add(self, more: Cost) -> None:
        self.disk += more.disk
        self.memory += more.memory
        self.coming += more.coming


_NOTHING: Final = Cost(0, 0)
NO_ROOM: Final = "the gateway has no room for it while it fetches others"


class ClientStore(Generic[Kept]):
    """Kept bodies by client, in the order of their last use, within `most_bytes` of the disk."""

    def __init__(
        self,
        folder: Path,
        most_bytes: int,
        # Returns what an earlier process kept at a path, by its record; None: it is of no use.
        restore: Callable[[Path, bytes], Kept | None],
        ours: re.Pattern[str],  # matches names of files of ours; its group 1 is the body's name
        *,
        lasting: bool,  # bodies stay as long as their clients want
    ) -> None:
        self._lasting = lasting
        self._folder, self._most = folder, Cost(most_bytes, MEMORY_BYTES)
        self._restore, self._ours = restore, ours
        # Of the few threads that hash files and wait for the disk, so many work for one client.
        self.threads = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(THREADS))
        self._kept: dict[str, OrderedDict[str, Kept]] = {}
        self._costs: dict[tuple[str, str], Cost] = {}  # by client and name, which clients choose
        self._accounts: defaultdict[str, _Account] = defaultdict(_Account)
        self._total = _Account()
        self._tidied_unix_s = 0.0
        self.clock = UnhurriedClock()
        self._lock = -1

    @property
    def used_before(self) -> bool:
        """Tell whether an earlier process may have kept something."""
        return self._folder.is_dir()

    def open(self) -> None:
        """Lock the folder and read it, if that was not done. TransferError: it cannot be used."""
        if self._lock >= 0:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._read()
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            _log.warning("nothing can be kept", folder=str(self._folder), why=str(error))
            raise TransferError("the gateway cannot store files now; its log says why") from None
        self._lock = lock

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def of(self, client: str) -> list[Kept]:
        return list(self._kept.get(client, {}).values())

    def all(self) -> list[tuple[str, Kept]]:
        return [(client, each) for client in self._kept for each in self.of(client)]

    def _has(self, client: str, kept: Kept) -> bool:
        return self._kept.get(client, {}).get(kept.record.id) is kept

    def remove(self, client: str, kept: Kept) -> None:
        if self._has(client, kept):
            del self._kept[client][kept.record.id]
            self._settle(client, kept.record.id, _NOTHING)
        for path in (kept.path, *files_of(kept.path), kept.path.with_suffix(".json")):
            with suppress(OSError):  # a disk that is read-only now, say
                unlink(path)

    def used(self, client: str, kept: Kept) -> None:
        """Note that a client uses a body now: others make room before it."""
        if self._has(client, kept):
            self._kept[client].move_to_end(kept.record.id)

    async def tidy(self, now_unix_s: float) -> None:
        """Remove what has expired, in turns of its clients."""
        self._tidied_unix_s = now_unix_s
        for client, each in self.all():
            if each.expired(now_unix_s):
                await current().turns.turn(client)
                if self._has(client, each) and each.expired(now_unix_s):
                    self.remove(client, each)

    def add(self, client: str, kept: Kept, record: bytes) -> None:
        """Count a new body with its record."""
        self._kept.setdefault(client, OrderedDict())[kept.record.id] = kept
        self.account(client, kept, record)

    def account(self, client: str, kept: Kept, record: bytes = b"") -> None:
        """Count a body that has changed, with its record. TransferError: it was removed meanwhile."""
        if not self._has(client, kept):
            raise TransferError("the gateway has removed it meanwhile; run the same command again")
        self._settle(client, kept.record.id, self._cost(client, kept, record))

    def _cost(self, client: str, kept: Kept, record: bytes) -> Cost:
        """Return the cost of a body with its record; what a record took stays its own."""
        old = self._costs.get((client, kept.record.id))
        if old is None:
            taken = len(record)
        else:
            taken = max(old.memory - _EACH_BYTES - _LATER_BYTES, len(record) - _LATER_BYTES)
        return cost_of(kept.held_bytes, taken, kept.coming_bytes)

    def _settle(self, client: str, name: str, cost: Cost) -> None:
        old = self._costs.pop((client, name), _NOTHING)
        if cost != _NOTHING:
            self._costs[client, name] = cost
        for account in (self._accounts[client], self._total):
            account.add(cost.beside(old))

    async def counted(self, client: str, kept: Kept) -> bytes:
        """Return the record as it is to be written, and count it.

        TransferError: there is no room for what was added to it, or for its client's folder.
        """
        record = encoded(kept.record)
        if (old := self._costs.get((client, kept.record.id))) is not None:
            cost = self._cost(client, kept, record)
            if cost.memory > old.memory:
                await self.make_room(client, cost.beside(old), self.clock.now_s(), but=kept)
        self._folder_of(client)
        self.account(client, kept, record)
        return record

    async def make_room(
        self, client: str, more: Cost, now_unix_s: float, *, but: Kept | None = None
    ) -> None:
        """Make room for one more body of a client, or for more of one. TransferError: there is none.

        Thousands may have to go, in turns of the client: others may come and go meanwhile. `but`: stays.
        """
        if now_unix_s > self._tidied_unix_s + _TIDIED_EVERY_S:
            await self.tidy(now_unix_s)
        most = Cost(self._most_disk(), self._most.memory)
        half = Cost(most.disk // 2, most.memory // 2)
        if more.disk > half.disk:
            raise TransferError(
                f"the file is larger than the {half.disk} bytes that this gateway stores for a client"
            )
        own, total = self._accounts[client], self._total
        # Lasting bodies make no room for others: as much as their client has stays free for another one.
        count = [total, own] if self._lasting else [total]

        def fits() -> bool:
            # What was announced has its place among the client's own.
            disk = own.disk + more.disk
            return own.memory + more.memory <= half.memory and disk <= max(half.disk, own.disk)

        def fits_now() -> bool:
            disk = sum(each.here + more.disk - more.coming for each in count)
            memory = sum(each.memory + more.memory for each in count)
            return disk <= most.disk and memory <= most.memory

        while not fits():
            await current().turns.turn(client)
            self._drop_oldest([client], but)
        lacking = sum(each.here + own.coming + more.disk for each in count) - most.disk
        if more.coming > 0 and lacking > 0 and lacking > self._may_go():
            raise TransferError(NO_ROOM)
        while not (own_fits := fits()) or not fits_now():
            await current().turns.turn(client)
            self._drop_oldest(list(self._kept) if own_fits else [client], but)

    def _may_go(self) -> int:
        """Return the bytes of the disk that bodies take which may make room."""
        return sum(
            self._costs[client, each.record.id].disk
            for client, each in self.all()
            if each.may_make_room
        )

    def _most_disk(self) -> int:
        """Return the most bytes of the disk for all: what is given, as far as it is there."""
        try:
            there = self._total.here + self._free_bytes()
        except OSError as error:
            raise TransferError(f"the gateway cannot store it: {error.strerror}") from error
        return max(0, min(self._most.disk, there))

    def _free_bytes(self) -> int:
        """Return the bytes of the disk that other bodies may take, soon (`freed`). OSError."""
        return disk_usage(self._folder).free - _KEEP_FREE + sum(list(_not_freed.values()))

    def _drop_oldest(self, clients: list[str], but: Kept | None) -> None:
        """Drop what was used longest ago of what may go. TransferError: nothing may."""
        oldest = []
        for client in clients:
            may = (each for each in self.of(client) if each.may_make_room and each is not but)
            found = next(may, None)
            if found is not None:
                oldest.append((found.used_unix_s, client, found))
        if not oldest:
            raise TransferError(NO_ROOM)
        _, client, kept = min(oldest, key=lambda each: each[0])
        self._drop(client, kept)

    def _drop(self, client: str, kept: Kept) -> None:
        """Make room with a body that may."""
        self.remove(client, kept)

    def _folder_of(self, client: str) -> Path:
        """Return a client's folder, which is made. TransferError."""
        folder = self._folder / client
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise TransferError(f"the gateway cannot store it: {error.strerror}") from error
        return folder

    def _read(self) -> None:
        for folder in self._clients():
            found: dict[str, tuple[Kept, bytes]] = {}
            for path in folder.glob("*.json"):
                with suppress(OSError, ValueError, RecursionError):
                    record = own_file.read(path, LONGEST_RECORD)
                    kept = self._restore(path.with_suffix(""), record)
                    if kept is not None and kept.record.id == path.stem:
                        found[path.stem] = kept, record
            for kept, record in sorted(found.values(), key=lambda each: each[0].used_unix_s):
                self.add(folder.name, kept, record)
            for path in folder.iterdir():
                # Remove what an earlier process began, and no file of others.
                ours = self._ours.fullmatch(path.name)
                if ours is not None and ours[1] not in found:
                    path.unlink()

    def _clients(self) -> Iterator[Path]:
        for each in self._folder.iterdir():
            if not each.is_symlink() and each.is_dir() and _CLIENT.fullmatch(each.name):
                yield each


def encoded(record: Any) -> bytes:
    """Return a record as it lies on the disk. TransferError: it is too long to be kept."""
    found = msgspec.json.encode(record)
    if len(found) > LONGEST_RECORD:
        raise TransferError(f"its head is longer than the {LONGEST_RECORD} bytes that are kept")
    return found


def cost_of(body_bytes: int, record_bytes: int, coming_bytes: int = 0) -> Cost:
    """Return the cost of a body and its first record, with room for what is added to that later."""
    record_bytes += _LATER_BYTES
    here = _whole(body_bytes - coming_bytes)
    disk = _whole(body_bytes) + _whole(record_bytes)
    return Cost(disk, _EACH_BYTES + record_bytes, _whole(body_bytes) - here)


def _whole(n_bytes: int) -> int:
    """Return the bytes of the blocks that hold so many."""
    return -(-n_bytes // _BLOCK) * _BLOCK


def write_record(path: Path, record: bytes, *, durable: bool = False) -> None:
    """Write a record beside its body, so that it survives a restart; if `durable`, a crash of the host.

    TransferError: the disk fails.
    """
    draft = path.with_suffix(".new")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(own_file.create(draft), "wb") as written:
            written.write(record)
            written.flush()
            if durable:
                os.fdatasync(written.fileno())
        draft.replace(path.with_suffix(".json"))
        if durable:
            _sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise TransferError(f"the gateway cannot store it: {error.strerror}") from error


def unlink(path: Path) -> None:
    """Remove a file, if it is there; a thread frees the disk of a large one. Errors: OSError."""
    number = size = -1
    with suppress(OSError):  # it is not there, or no more files can be opened
        if (size := path.lstat().st_size) >= _LARGE:
            number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
    finally:
        if number >= 0:
            removed = object()
            _not_freed[removed] = size
            _freeing.submit(_free, number, removed)


def _free(number: int, removed: object) -> None:
    try:
        os.close(number)
    finally:
        del _not_freed[removed]


async def freed() -> None:
    """Wait until the disk has what was removed before."""
    await asyncio.wrap_future(_freeing.submit(int))


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
