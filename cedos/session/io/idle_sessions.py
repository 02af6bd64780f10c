"""Sessions that sleep: their credentials and positions in a file, found by flow id, woken when needed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import structlog

from cedos.session.io.idle_file import IdleFile, RecordState
from cedos.session.protocol.handshake.credentials import CREDENTIALS_BYTES, PEER_KEY, Credentials
from cedos.session.protocol.handshake.host_counts import HostCounts
from cedos.session.protocol.packed import IDLE_BYTES, IdleRecord, pack, unpack_session
from cedos.session.protocol.schedulers.interface import Scheduler
from cedos.session.protocol.sending.replay_memory import ReplayMemory
from cedos.session.protocol.session import Session
from cedos.session.protocol.session_limits import SessionLimits

STATE_BYTES: Final = 8
"""What its application may keep with a session."""

RECORD_BYTES: Final = CREDENTIALS_BYTES + IDLE_BYTES + STATE_BYTES
_IDLE: Final = slice(CREDENTIALS_BYTES, CREDENTIALS_BYTES + IDLE_BYTES)
_SCAN_SLOTS: Final = 2_000

_log = structlog.get_logger(__name__)


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

    def sleep(
        self,
        credentials: Credentials,
        session: Session,
        now: float,
        unix_s: float,
        state: bytes = b"",
    ) -> bool:
        """Keeps a session if it is idle: then it can be forgotten. Whether it was, and had room.

        `state`: its application's, up to `STATE_BYTES`.
        """
        idle = pack(session, now, unix_s)
        if idle is None:
            return False
        return self._put(_record(credentials, idle, state), RecordState.ASLEEP)

    def note(self, credentials: Credentials, keep_alive_s: int, unix_s: float) -> None:
        """A session begins: who it is is known even if the program is killed."""
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
        """The session of a flow, as it fell asleep, and its application's state.

        None where there is none, or it has expired.
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
            expired = IdleRecord.from_bytes(record[_IDLE]).expires_unix_s <= unix_s
            if expired and not living(record[:16]):
                gone += self.forget(record[:16])
        return gone

    def _put(self, record: bytes, state: RecordState) -> bool:
        before = len(self._file)
        try:
            self._file.put(record, state)
        except OSError as error:  # the disk is full: it goes on, and stays in memory
            _log.warning("a session is not written down", why=error.strerror)
            return False
        self._hosts.add(record[PEER_KEY], len(self._file) - before)
        return True

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def _record(credentials: Credentials, idle: IdleRecord, state: bytes) -> bytes:
    return credentials.to_bytes() + idle.to_bytes() + state.ljust(STATE_BYTES, b"\0")
