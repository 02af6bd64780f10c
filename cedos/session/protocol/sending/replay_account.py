"""What a session keeps until the peer has acknowledged it: how much that may be, and is. Pure."""

from cedos.session.protocol.schedulers.interface import BACKGROUND_RANKS
from cedos.session.protocol.sending.credit import INITIAL_STREAM_BYTES, URGENT_BYTES
from cedos.session.protocol.sending.replay_memory import SPARE, ReplayMemory


class ReplayAccount:
    """What is kept for one session (`held_bytes`); `owner` names it in `memory`, the limit of all.

    While a path is up, of the stream may be held the first window and as much again as was acknowledged,
    which grows ahead of any congestion window (docs/decisions/replay-memory.md). What lies on a path
    that pauses beside others (`stuck_bytes`) does not count, so that they can go on.
    """

    def __init__(self, memory: ReplayMemory, limit_bytes: int, owner: object) -> None:
        self.held_bytes = 0
        self._absent = True
        self._stuck_bytes = 0
        self.limit_bytes = limit_bytes
        self._earned_bytes = INITIAL_STREAM_BYTES
        self._memory = memory
        self._least_bytes = min(limit_bytes, memory.quantum_bytes)
        self._owner = owner

    def set_absent(self, absent: bool) -> None:
        self._absent = absent

    def set_stuck(self, stuck_bytes: int) -> bool:
        """Whether more may be held now than before."""
        before, self._stuck_bytes = self._stuck_bytes, stuck_bytes
        return stuck_bytes > before

    def most_bytes(self, rank: int = 0) -> int:
        """How much this session may hold at this moment for data of a label to be taken."""
        most = min(self.limit_bytes, self._memory.share_bytes)
        return most - min(URGENT_BYTES, most // 4) if rank in BACKGROUND_RANKS else most

    def stream_room_bytes(self, rank: int) -> int:
        """0 where it is too little to begin with."""
        most = self.most_bytes(rank)
        if not self._absent:
            most = min(most, self._earned_bytes + self._stuck_bytes)
        room = most - self.held_bytes
        return room if room >= self._least_bytes else 0

    def fitting(self, data: bytes, rank: int, room: int) -> bytes:
        """As much of it as there is room for, which is taken."""
        if len(data) > room:
            if room < self._least_bytes:
                self._wait(self._least_bytes)
                return b""
            data = data[:room]
        return data if self.take(len(data), rank) else b""

    def _wait(self, wanted: int) -> None:
        if not self.held_bytes:  # else an acknowledgement of our own tells us
            self._memory.wait(self._owner, wanted)

    def take(self, size: int, rank: int) -> bool:
        held = self.held_bytes
        if held + size > self.most_bytes(rank) and (held or not self._fits_alone(size)):
            self._wait(size)
            return False
        if size:
            self._memory.take(size, first=not held)
            self.held_bytes = held + size
        return True

    def _fits_alone(self, size: int) -> bool:
        """What cannot be divided may be taken by a session that holds nothing else."""
        return size <= min(self.limit_bytes, self._memory.free_bytes // SPARE)

    def give(self, size: int) -> None:
        if size:
            self.held_bytes -= size
            self._earned_bytes += size
            self._memory.give(size, last=not self.held_bytes)

    def give_all(self) -> None:
        self.give(self.held_bytes)
        self._memory.forget(self._owner)
