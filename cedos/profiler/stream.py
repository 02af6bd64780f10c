"""One direction of a connection, known only by the sequence numbers at which its messages begin."""

from dataclasses import dataclass

_NUMBERS = 1 << 32
# A number this little behind is old: a retransmission. Numbers wrap, so a body of nearly 4 GB (or a
# multiple) looks like that too; the less the better, but more than any window.
_WINDOW = 1 << 26


@dataclass(slots=True)
class Stream:
    """Positions count the stream's bytes from its beginning.

    `carried_bytes` is what it is known to have carried, from elsewhere; `position` the farthest byte
    that a packet told of. `body_at` is where a body without a stated length begins, None when there
    is none under way.
    """

    carried_bytes: int = 0
    position: int = 0
    body_at: int | None = None
    _number: int | None = None  # of the byte at `position`
    _begun_at: int = -1  # position of the last message

    def expect(self, number: int) -> None:
        ahead = self._ahead(number)
        if ahead < _NUMBERS - _WINDOW:
            self._advance(number, ahead)

    def begin(self, number: int) -> int | None:
        """A message begins at this byte: its position, or None where it is a retransmission."""
        ahead = self._ahead(number)
        if ahead >= _NUMBERS - _WINDOW:
            behind = self.position - (_NUMBERS - ahead)
            if behind <= self._begun_at:
                return None
            self._begun_at = behind
            return behind
        if self.position + ahead == self._begun_at:
            return None
        self._advance(number, ahead)
        self._begun_at = self.position
        return self.position

    def end_body(self, position: int) -> int | None:
        """The length of the body under way, which ends at `position`; None where there is none."""
        if self.body_at is None:
            return None
        length, self.body_at = position - self.body_at, None
        return length if length >= 0 else None

    def _ahead(self, number: int) -> int:
        if self._number is None:
            self._number, self.position = number, self.carried_bytes
        return (number - self._number) % _NUMBERS

    def _advance(self, number: int, ahead: int) -> None:
        self._number = number
        self.position += ahead
