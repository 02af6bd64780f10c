"""The server of files: one request after the other in a session; clients may send new files."""

import asyncio
import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from itertools import islice, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from cedos.apps.files.messages import (
    DIGEST_BYTES,
    LONGEST_LISTING,
    MOST_ENTRIES,
    VERSION,
    Answer,
    AnyRequest,
    FileRequest,
    Listing,
    ListRequest,
    PutAnswer,
    PutRequest,
    pack,
    read,
    text_of,
    unix_time,
)
from cedos.apps.files.partial import (
    NO_PLACE,
    PART_NAME,
    Partial,
    files_of,
    folder_below,
    when_free,
)
from cedos.apps.files.tree import FileHash, Tree, Version, list_entries, reader
from cedos.errors import SessionError, TransferError
from cedos.kernel.own_file import to_its_end
from cedos.logs import get_logger
from cedos.session import keys
from cedos.session.protocol.crypto import host_id
from cedos.session.protocol.handshake.limits import network_of

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection
    from cedos.session.sockets.listener import Listener

_AT_ONCE: Final = 8  # of one host
# Of a path below the root. Programs do not reach what has a longer one.
_LONGEST_PATH_BYTES: Final = 4000
_DEEPEST: Final = 500  # names of an upload's path: each takes time
_MOST_UNFINISHED: Final = 1_000  # uploads of a host; then its oldest part goes
_KEEP_FREE_FILES: Final = 0.1  # of those that the disk has room for
_ENTRY_BYTES: Final = 100  # of a list's entry, beside the name
_LOOKED_S: Final = 10.0  # from one look at a full folder to the next
_FOLDERS_KEPT: Final = 1_024


class ListedFolders:
    """The room that the lists of folders have left for what clients add."""

    def __init__(self) -> None:
        # By folder: names and bytes that its list has room for, and when it was looked at.
        self._left: OrderedDict[tuple[int, int], tuple[int, int, float]] = OrderedDict()
        # By open folder: the files that come into it, and are not listed until they are whole.
        self._coming: dict[int, tuple[tuple[int, int], str]] = {}
        self._turn = threading.Lock()

    def add(self, folder: int, name: str, *, comes: bool = False) -> None:
        """Count a name that comes into an open folder. TransferError: its list has no room for it.

        `comes`: as a file, until it is closed.
        """
        of = os.fstat(folder)
        key = of.st_dev, of.st_ino
        with self._turn:
            if not os.access(name, os.F_OK, dir_fd=folder, follow_symlinks=False):
                self._add(folder, key, name)
            if comes:
                self._coming[folder] = key, name

    def on_closed(self, folder: int) -> None:
        """Note that a folder will be closed: what was to come into it has come, or does not."""
        self._coming.pop(folder, None)

    def _add(self, folder: int, key: tuple[int, int], name: str) -> None:
        now_s = time.monotonic()
        names, n_bytes, looked_s = self._left.get(key, (0, 0, -_LOOKED_S))
        more_bytes = _listed_bytes(name)
        # Some that were counted may be gone by now.
        if not (names and n_bytes > more_bytes) and now_s - looked_s >= _LOOKED_S:
            found = (each.name for each in list_entries(folder) if each)
            here = set(islice(found, MOST_ENTRIES))
            coming = [each for of, each in list(self._coming.values()) if of == key]
            every = [*here, *(each for each in coming if each not in here)]
            names = MOST_ENTRIES - len(every)
            n_bytes = LONGEST_LISTING - sum(map(_listed_bytes, every))
            looked_s = now_s
        full = names <= 0 or n_bytes <= more_bytes
        left = (0, 0, looked_s) if full else (names - 1, n_bytes - more_bytes, looked_s)
        self._left[key] = left
        if len(self._left) > _FOLDERS_KEPT:
            self._left.popitem(last=False)
        if full:
            raise TransferError("the folder is so full that no more can be listed")


def _listed_bytes(name: str) -> int:
    return len(msgspec.json.encode(text_of(name))) + _ENTRY_BYTES


class Uploads:
    """The uploads into a tree. A part lies beside the file's name until it is whole.

    `keep_free_bytes`: of the disk; they stay free.
    """

    def __init__(self, tree: Tree, keep_free_bytes: int) -> None:
        self._tree, self._keep_free_bytes = tree, keep_free_bytes
        # By host: its running uploads, the oldest first, which bring yet what their parts have not.
        self._listed = ListedFolders()
        self._running: dict[bytes, dict[Connection, tuple[Partial, PutRequest] | None]] = {}
        # By host: the paths of its parts that lie here, the oldest first, with the parts' sources.
        self._unfinished: dict[bytes, OrderedDict[str, str]] = {}

    async def make_folder(
        self, path: str, place: AbstractAsyncContextManager[Any] = NO_PLACE
    ) -> None:
        """Make a folder. TransferError: the name cannot be, or there is no room.

        `place`: among the few threads.
        """
        parts = self._parts(path)
        async with place:
            os.close(await to_its_end(asyncio.to_thread(self._make_folder, parts), os.close))

    @asynccontextmanager
    async def open_part(
        self,
        connection: "Connection",
        request: PutRequest,
        place: AbstractAsyncContextManager[Any] = NO_PLACE,
    ) -> AsyncIterator[Partial]:
        """Open the part of a file that a host sends, with the bytes of earlier sessions.

        `place`: among the few threads; not held while this waits. A host's upload without a network makes
        way for its next one.
        TransferError: the name cannot be, there is such a file, or it does not fit.
        """
        parts, peer_key = self._parts(request.path), connection.peer_key
        begun = self._running.get(peer_key, {})
        if len(begun) >= _AT_ONCE:
            away = next((each for each in begun if not each.paths()), None)
            if away is None:
                raise TransferError(f"{_AT_ONCE} files at once are the most here; try again later")
            del begun[away]
            away.abort("a newer upload of its host has its place")
        # Open the folder once: its path may lead elsewhere later.
        partial, begun = None, self._running.setdefault(peer_key, {})
        begun[connection] = None
        inside, folder, path = "", -1, "/".join(parts)
        source = f"{keys.to_text(peer_key)}/{request.version}"
        unfinished = self._unfinished.setdefault(peer_key, OrderedDict())
        try:
            async with place:
                await self._make_way(unfinished, path)
                making = asyncio.to_thread(self._make_folder, parts[:-1], parts[-1])
                folder = await to_its_end(making, self._close)
            inside = (
                f"/proc/self/fd/{folder}/"  # this very folder, whatever its path leads to by now
            )
            partial = await when_free(Path(inside) / parts[-1], source, place)
            # Reserve the disk space of the host's running uploads: from itself, for others may bring
            # theirs, and this one nothing. A client without a network may never bring them.
            others = (each for other, each in begun.items() if each and other.paths())
            others_bytes = sum(starmap(_missing_bytes, others))
            self._check_room(folder, others_bytes + _missing_bytes(partial, request))
            begun[connection] = partial, request
            yield partial
        except TransferError as error:
            if not inside:
                raise
            why = str(error).replace(inside, "")
            raise TransferError(why.replace(inside[:-1], "/".join(parts[:-1]))) from error
        finally:
            if partial is not None:
                partial.close()
                if not partial.replaces:
                    unfinished.pop(path, None)
                if partial.have and files_of(Path(inside) / parts[-1])[1].exists():
                    unfinished[path] = source
            if inside:
                self._close(folder)
            begun.pop(connection, None)
            if not begun and self._running.get(peer_key) is begun:
                del self._running[peer_key]

    def _close(self, folder: int) -> None:
        self._listed.on_closed(folder)
        os.close(folder)

    async def _make_way(self, unfinished: OrderedDict[str, str], path: str) -> None:
        """Remove the oldest parts of a host if it has too many, and none of this path."""
        if path in unfinished:
            unfinished.move_to_end(path)
            return
        while len(unfinished) >= _MOST_UNFINISHED:
            oldest = unfinished.popitem(last=False)
            await to_its_end(asyncio.to_thread(self._drop, *oldest))

    def _drop(self, path: str, source: str) -> None:
        """Remove a part, unless it is received now, or another host's by now, or gone."""
        *above, name = path.split("/")
        with suppress(TransferError), ExitStack() as opened:
            folder = self._tree.folder(above)
            opened.callback(os.close, folder)
            partial = Partial(Path(f"/proc/self/fd/{folder}") / name, source)
            opened.callback(partial.close)
            if partial.have:
                partial.discard()

    def _make_folder(self, parts: list[str], file: str = "") -> int:
        """Open a folder, made if it is not there, for a file if one comes there.

        TransferError: there is no room, or it cannot be.
        """
        folder = self._tree.folder([])
        try:
            self._check_room(folder, 0)
            for part in parts:
                self._listed.add(folder, part)
                above, folder = folder, folder_below(folder, [part], make=True)
                os.close(above)
            if file:
                self._listed.add(folder, file, comes=True)
        except OSError as error:
            os.close(folder)
            raise TransferError(f"there is no folder {'/'.join(parts)!r}") from error
        except TransferError:
            os.close(folder)
            raise
        return folder

    def write(self, partial: Partial, data: bytes | memoryview) -> None:
        """Write the next bytes of an upload. TransferError: no room is left for them."""
        self._check_room(partial.number, len(data))
        partial.write(data)

    def _check_room(self, number: int, more_bytes: int) -> None:
        """Refuse bytes for which the disk of an open file has no room. Errors: TransferError."""
        disk = os.fstatvfs(number)
        free = disk.f_bavail * disk.f_frsize - more_bytes
        files_left = disk.f_favail >= disk.f_files * _KEEP_FREE_FILES
        if free < self._keep_free_bytes or not files_left:
            raise TransferError("not enough room on the server's disk")

    def _parts(self, path: str) -> list[str]:
        """Return the names of a path from the root on. TransferError: it cannot be kept."""
        parts = self._tree.parts(path)
        if parts is not None and len(os.fsencode("/".join(parts))) > _LONGEST_PATH_BYTES:
            raise TransferError(f"the path is longer than {_LONGEST_PATH_BYTES} bytes")
        if parts is not None and len(parts) > _DEEPEST:
            raise TransferError(f"the path has more than {_DEEPEST} names")
        if parts is None or any(
            part.startswith(".") or PART_NAME.fullmatch(part) for part in parts
        ):
            raise TransferError(
                f"{path!r} cannot be kept; a path without .., without names that begin with a dot, and "
                "without the names of parts would be right"
            )
        return parts


def _missing_bytes(partial: Partial, request: PutRequest) -> int:
    return request.size - (partial.have if partial.version == request.version else 0)


REQUEST_S: Final = 60.0
_READ_BYTES: Final = 1 << 18
OPEN_FILES: Final = 8  # of one session, that are not acknowledged yet
# Of the few threads that list folders and hash files, so many work for one address.
THREADS_OF_ADDRESS: Final = 2
# Lists that clients have not taken yet: eight of the largest ones.
MOST_LISTED_BYTES: Final = 8 * LONGEST_LISTING

log = get_logger("cedos-serve")


class _AddressTurns(asyncio.Semaphore):
    """The turns of an address: few of its threads work at once, and its requests begin one by one."""

    def __init__(self) -> None:
        super().__init__(THREADS_OF_ADDRESS)
        self._begins = asyncio.Lock()

    async def begin(self) -> None:
        """Return in a later turn of the event loop than for the address's last request.

        A client may have sent thousands, and each has the disk asked.
        """
        async with self._begins:
            await asyncio.sleep(0)


class _Lists:
    """The lists that wait for their clients. Beyond the limit, sessions of the address with most end."""

    def __init__(self) -> None:
        self._waiting: dict[Connection, tuple[str, int]] = {}  # address and bytes; the oldest first

    @contextmanager
    def waits(self, connection: "Connection", place: str, size_bytes: int) -> Iterator[None]:
        self._waiting[connection] = place, size_bytes
        while sum(size for _, size in self._waiting.values()) > MOST_LISTED_BYTES:
            of_place: Counter[str] = Counter()
            for each, size in self._waiting.values():
                of_place[each] += size
            fullest = max(of_place, key=of_place.__getitem__)
            oldest = next(each for each in self._waiting if self._waiting[each][0] == fullest)
            del self._waiting[oldest]
            oldest.abort("too many lists wait for clients of its address")
        try:
            yield
        finally:
            self._waiting.pop(connection, None)


class Serving:
    """A server of a tree to the clients that the listener admits; it counts whole files.

    Without `uploads` no file is taken.
    """

    def __init__(
        self,
        tree: Tree,
        listener: "Listener",
        names: dict[bytes, str],
        uploads: Uploads | None = None,
    ) -> None:
        self._tree, self._listener, self._names = tree, listener, names
        self._uploads = uploads
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: dict[tuple[bytes, str], list[Connection]] = {}
        self._places: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()
        self._turns: WeakValueDictionary[str, _AddressTurns] = WeakValueDictionary()
        self._lists = _Lists()
        self.served = self.kept = 0

    async def run(self) -> None:
        while True:
            try:
                connection = await self._listener.accept()
            except SessionError:
                return
            task = asyncio.get_running_loop().create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close all sessions; clients go on with the next server at this address."""
        await self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, connection: "Connection") -> None:
        who = self._names.get(connection.peer_key) or host_id(connection.peer_key).hex()[:12]
        files: deque[tuple[int, int]] = deque()  # where each ends in the stream
        served: dict[str, Any] = {}  # what the client has whole once it asks for more, or ends
        path, began_s = "", time.monotonic()
        new = not connection.resumed  # else it has asked before, and may ask when it likes
        try:
            while (request := await _next_request(connection, first=new)) is not None:
                self._count(served)
                new = False
                await self._turn(connection).begin()
                path, began_s = request.path or "/", time.monotonic()
                _close_old(files, connection.acknowledged_bytes)
                try:
                    if request.protocol != VERSION:
                        raise TransferError(
                            f"this server speaks version {VERSION} of the file protocol"
                        )
                    with self._hold_alone(connection, path):
                        served = await self._answer(connection, request, who, files)
                except TransferError as error:
                    log.info("refused", path=path, to=who, why=str(error))
                    await connection.write(pack(_refusal(request, str(error))))
                    if isinstance(request, PutRequest):
                        break  # what follows may be bytes of the file
            self._count(served)
            connection.finish()
            await connection.close()
        except TransferError as error:  # no request at all
            log.info("refused", path=path, to=who, why=str(error))
            connection.abort(str(error))
        except TimeoutError:
            connection.abort("no request came")
        except SessionError as error:
            log.info(
                "broken off", path=path, to=who, seconds=_seconds_since(began_s), why=str(error)
            )
        except OSError as error:
            log.error("serving a client failed", why=error.strerror)
            connection.abort("the server failed")
        except asyncio.CancelledError:
            connection.abort("the server stops")
            raise
        finally:
            for _, number in files:
                os.close(number)
            # Whatever failed: no session may go on to read by these numbers.
            connection.abort("the server failed")

    def _turn(self, connection: "Connection") -> _AddressTurns:
        """Return the turns of a client's address, as it was last: keys cost nothing."""
        if paths := connection.paths():
            self._places[connection] = network_of(paths[0].peer)
        place = self._places.get(connection, "")
        return self._turns.setdefault(place, _AddressTurns())

    def _count(self, served: dict[str, Any]) -> None:
        if served:
            self.served += 1
            began_s = served.pop("began_s")
            log.info("served", **served, seconds=_seconds_since(began_s))
            served.clear()

    async def _answer(
        self,
        connection: "Connection",
        request: AnyRequest,
        who: str,
        files: "deque[tuple[int, int]]",
    ) -> dict[str, Any]:
        if isinstance(request, ListRequest):
            await self._list(connection, request)
            return {}
        if isinstance(request, PutRequest):
            await self._take(connection, request, who)
            return {}
        # Bound the open files: each stays open until the client has acknowledged its bytes.
        while len(files) >= OPEN_FILES:  # a client that asks ahead
            await connection.wait_acknowledged(files[0][0])
            _close_old(files, connection.acknowledged_bytes)
        began_s = time.monotonic()
        number = self._tree.open(request.path)
        end = connection.written_bytes
        try:
            n_bytes = await self._send(connection, request, number)
            end = connection.written_bytes
        finally:
            files.append((end, number))
        if request.head:
            return {}
        return {"path": request.path, "to": who, "bytes": n_bytes, "began_s": began_s}

    @contextmanager
    def _hold_alone(self, connection: "Connection", path: str) -> Iterator[None]:
        """Abort older sessions of this host for this file without a network: their client is gone.

        A client that crashed would else be waited for until its deadline.
        """
        of = self._sending.setdefault((connection.peer_key, path), [])
        for other in list(of):
            if not other.paths():
                other.abort("the file was asked for again")
        of.append(connection)
        try:
            yield
        finally:
            of.remove(connection)
            if not of:
                self._sending.pop((connection.peer_key, path), None)

    async def _send(self, connection: "Connection", request: FileRequest, number: int) -> int:
        """Send answer, bytes and digest as far as there is room; the session goes on with the rest."""
        status = os.fstat(number)
        version = Version.of(status)
        # Continue a part of this very version, else begin anew.
        known = request.version == str(version) and request.have <= version.size
        start = request.have if known else 0
        answer = Answer(version.size, start, str(version), unix_time(status.st_mtime))
        await connection.write(pack(answer))
        length = version.size - start
        if request.head:
            return 0
        if length:
            await connection.write_source(reader(number, start), length)
        await connection.write(await self._digest(connection, number, version))
        return length

    async def _digest(self, connection: "Connection", number: int, version: Version) -> bytes:
        """Return a file's digest, and compute it only while the client is there."""
        hashing, paths = FileHash(number, version.size), connection.flow.paths
        while True:
            async with self._turn(connection):
                digest = await self._tree.digest(hashing, version, lambda: bool(paths))
            if digest is not None:
                return digest
            await connection.wait_connected()

    async def _list(self, connection: "Connection", request: ListRequest) -> None:
        async with self._turn(connection):
            found = await self._tree.entries(request.path)
        body = msgspec.json.encode(found)
        del found  # a client may take its time, and the entries are three times as large
        if len(body) > LONGEST_LISTING:
            raise TransferError(f"{request.path!r} holds too many files to be listed")
        with self._lists.waits(connection, self._places.get(connection, ""), len(body)):
            await connection.write(pack(Listing(len(body))))
            await connection.write(body)

    async def _take(self, connection: "Connection", request: PutRequest, who: str) -> None:
        """Receive a file from a client, from where an earlier session ended."""
        if self._uploads is None:
            raise TransferError("this server takes no files (cedos-serve --writable)")
        if request.folder:
            await self._uploads.make_folder(request.path, self._turn(connection))
            await connection.write(pack(PutAnswer()))
            return
        began_s = time.monotonic()
        # The answer to a whole file may have been lost: do not take it twice.
        if await self._has_file(connection, request):
            return
        async with AsyncExitStack() as taken:
            # A thread hashes what is here already.
            turn = self._turn(connection)
            beginning = self._uploads.open_part(connection, request, turn)
            partial = await taken.enter_async_context(beginning)
            # Go on where an earlier session ended, if it was the same version.
            start = partial.have if partial.version == request.version else 0
            async with self._turn(connection):
                begun = asyncio.to_thread(partial.begin, start, request.version, request.size)
                await to_its_end(begun)
            await connection.write(pack(PutAnswer(start)))
            while partial.have < request.size:
                data = await connection.read(min(_READ_BYTES, request.size - partial.have))
                if not data:
                    raise SessionError("the client closed the connection within the file")
                self._uploads.write(partial, data)
            # The file gets its name only if its digest is the client's.
            if not partial.is_right(await connection.read_exactly(DIGEST_BYTES)):
                async with self._turn(connection):
                    await to_its_end(asyncio.to_thread(partial.discard))
                raise TransferError(
                    "the received file differs from the sent one; run the same command again"
                )
            async with self._turn(connection):
                await to_its_end(asyncio.to_thread(partial.finish, request.modified_unix_s))
        self.kept += 1
        n_bytes = request.size - start
        log.info("kept", path=request.path, of=who, bytes=n_bytes, seconds=_seconds_since(began_s))
        await connection.write(pack(PutAnswer(request.size)))

    async def _has_file(self, connection: "Connection", request: PutRequest) -> bool:
        """Return True if the file is here: a client that ended before the answer sends it again.

        TransferError: there is another one.
        """
        try:
            number = self._tree.open(request.path)
        except TransferError:
            return False
        try:
            version = Version.of(os.fstat(number))
            if version.size != request.size:
                return False  # refused with the usual words
            await connection.write(pack(PutAnswer(request.size)))
            theirs = await connection.read_exactly(DIGEST_BYTES)
            ours = await self._digest(connection, number, version)
            if theirs != ours:
                raise TransferError(
                    f"{request.path} is there already, with another content; it is not overwritten"
                )
        finally:
            os.close(number)
        await connection.write(pack(PutAnswer(request.size)))
        return True


async def _next_request(connection: "Connection", *, first: bool) -> AnyRequest | None:
    """Return the next request, None when the client has finished. The first one must come soon."""
    async with asyncio.timeout(REQUEST_S if first else None):
        begun = await connection.first_byte()
        if not begun:
            return None
        request: AnyRequest = await read(AnyRequest, connection.read_exactly, begun)
        return request


def _close_old(files: "deque[tuple[int, int]]", acknowledged_bytes: int) -> None:
    """Close the files that the client has acknowledged: their bytes are not sent again."""
    while files and files[0][0] <= acknowledged_bytes:
        os.close(files.popleft()[1])


def _refusal(request: AnyRequest, why: str) -> Answer | Listing | PutAnswer:
    kinds = {FileRequest: Answer, ListRequest: Listing, PutRequest: PutAnswer}
    text = why.encode(errors="backslashreplace").decode()  # a name may be no UTF-8
    refusal: Answer | Listing | PutAnswer = kinds[type(request)](refused=text[:1000])
    return refusal


def _seconds_since(began_s: float) -> float:
    return round(time.monotonic() - began_s, 3)


def client_names(clients: dict[str, bytes]) -> dict[bytes, str]:
    """Return the names of clients by key, for the log. TransferError: one key has two names."""
    names: dict[bytes, str] = {}
    for name, key in clients.items():
        if key in names:
            raise TransferError(f"{names[key]} and {name} have one key, {keys.to_text(key)}")
        names[key] = name
    return names
