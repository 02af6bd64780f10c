"""Pieces of a byte stream put in order: late, twice, overlapping or hostile, in bounded memory."""

MAX_BYTES = 16_384
"""How far a stream is followed. Post-quantum ClientHellos have 2 KB; what is longer is cut here."""

_MAX_WAITING = 64  # pieces behind a gap; Chromium cuts its hello into about twenty, shuffled


class Reassembly:
    """The contiguous beginning (`prefix`) of a stream whose pieces come in any order."""

    __slots__ = ("_waiting", "prefix")

    def __init__(self) -> None:
        self.prefix = b""
        self._waiting: dict[int, bytes] = {}

    def add(self, offset: int, piece: bytes) -> bool:
        """Whether the prefix has grown. Of bytes that come twice the first copy counts."""
        end = min(offset + len(piece), MAX_BYTES)
        if end <= len(self.prefix):
            return False
        if offset > len(self.prefix):
            self._keep(offset, piece[: end - offset])
            return False
        self.prefix += piece[len(self.prefix) - offset : end - offset]
        for start in sorted(self._waiting):
            if start > len(self.prefix):
                break
            self.prefix += self._waiting.pop(start)[len(self.prefix) - start :]
        return True

    def _keep(self, offset: int, piece: bytes) -> None:
        known = self._waiting.pop(offset, b"")
        waiting = sum(len(each) for each in self._waiting.values())
        if len(known) >= len(piece):
            piece = known
        if len(self._waiting) < _MAX_WAITING and waiting + len(piece) <= MAX_BYTES:
            self._waiting[offset] = piece
        elif known:
            self._waiting[offset] = known
