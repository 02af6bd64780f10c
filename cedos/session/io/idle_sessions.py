"""Sessions that sleep: their credentials and positions in a file, found by flow id, woken when needed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from cedos.session.io.idle_file import IdleFile, RecordState
from cedos.session.protocol.handshake.credentials import CREDENTIALS_BYTES, PEER_KEY, Credentials
from cedos.session.protocol.handshake.host_counts import HostCounts
from cedos.session.protocol.packed import IDLE_BYTES, IdleRecord, pack, unpack_session
from cedos.session.protocol.schedulers.interface import Scheduler
from cedos.session.protocol.sending.replay_memory import ReplayMemory
from cedos.session.protocol.session import Session
from cedos.session.protocol.session_limits import SessionLimits

RECORD_BYTES: Final = CREDENTIALS_BYTES + IDLE_BYTES
_SCAN_SLOTS: Final = 2_000


class IdleSessions:
    """The idle sessions of one program.

    A session that wakes keeps its record, so that a program that was killed knows who it was: a peer
    that had gone on is told so, with proof, and one that had not goes on.
    """

    def __init__(self, path: Path) -> None:
        self._file = IdleFile(path, RECORD_BYTES)
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
        """A session's record, which begins with its credentials; None where there is none."""
        return self._file.get(flow_id)

    def records(self) -> Iterator[bytes]:
        return iter(self._file)

    def of_host(self, peer_key: bytes) -> int:
        """How many sessions of the holder of a key are here, asleep or awake; it may have a few less."""
        return self._hosts.of(peer_key)

    def sleep(self, credentials: Credentials, session: Session, now: float, unix_s: float) -> bool:
        """Keeps a session if it is idle: then it can be forgotten. Whether it was."""
        idle = pack(session, now, unix_s)
        if idle is None:
            return False
        self._put(credentials.to_bytes() + idle.to_bytes(), RecordState.ASLEEP)
        return True

    def note(self, credentials: Credentials, keep_alive_s: int, unix_s: float) -> None:
        """A session begins: who it is is known even if the program is killed."""
        idle = IdleRecord.at_the_beginning(keep_alive_s, unix_s)
        self._put(credentials.to_bytes() + idle.to_bytes(), RecordState.AWAKE)

    def wake(
        self,
        flow_id: bytes,
        scheduler: Scheduler,
        now: float,
        unix_s: float,
        *,
        limits: SessionLimits,
        memory: ReplayMemory | None = None,
    ) -> tuple[Credentials, Session] | None:
        """The session of a flow, as it fell asleep; None where there is none, or it has expired."""
        record = self._file.get(flow_id)
        if record is None:
            return None
        idle = IdleRecord.from_bytes(record[CREDENTIALS_BYTES:])
        if idle.expires_unix_s <= unix_s:
            self.forget(flow_id)
            return None
        self._put(record, RecordState.AWAKE)
        session = unpack_session(idle, scheduler, now, unix_s, limits=limits, memory=memory)
        return Credentials.from_bytes(record[:CREDENTIALS_BYTES]), session

    def keep_only(self, allow: Callable[[bytes], bool]) -> None:
        """Forgets the sessions of holders of other public keys."""
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
        """Goes through the next 2,000 for those that have expired, and forgets them; how many.

        `living` says of a flow id whether its session is awake.
        """
        records, self._scanned_to = self._file.scan(self._scanned_to, _SCAN_SLOTS)
        gone = 0
        for record in records:
            expired = IdleRecord.from_bytes(record[CREDENTIALS_BYTES:]).expires_unix_s <= unix_s
            if expired and not living(record[:16]):
                gone += self.forget(record[:16])
        return gone

    def _put(self, record: bytes, state: RecordState) -> None:
        before = len(self._file)
        self._file.put(record, state)
        self._hosts.add(record[PEER_KEY], len(self._file) - before)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()
