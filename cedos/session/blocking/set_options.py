"""What a program has set on one socket."""

from collections.abc import Callable
from typing import Any

from cedos.session.blocking.options import SocketOption, known, plain
from cedos.session.protocol.buffer_manager import BufferManager
from cedos.session.sockets.connection import Connection


class SetOptions:
    """The session's options, and those of every TCP socket, which change nothing."""

    def __init__(self) -> None:
        self._set: dict[SocketOption, Any] = {}
        self._plain: dict[tuple[int, int], Any] = {}

    def set(self, level: int, option: int, value: Any) -> bool:
        """Whether it is one of the session's.

        Raises:
            OSError: ENOPROTOOPT: there is none.
        """
        if plain(level, option) is not None:
            self._plain[level, option] = value
            return False
        self._set[known(level, option)] = value
        return True

    def get(self, option: SocketOption, default: Any = None) -> Any:
        return self._set.get(option, default)

    def get_plain(self, level: int, option: int) -> Any:
        """None where it is none of every TCP socket's."""
        default = plain(level, option)
        return None if default is None else self._plain.get((level, option), default)

    def scheduler(self) -> dict[str, Any]:
        """The argument of `connect` and `listen`, where one was chosen."""
        name = self._set.get(SocketOption.SCHEDULER)
        return {} if name is None else {"scheduler": name}

    def apply(self, connection: Connection, buffered: Callable[[], int]) -> None:
        """Tells the session, in its loop; `buffered`: bytes that were read ahead."""
        if SocketOption.LABEL in self._set:
            connection.label = self._set[SocketOption.LABEL]
        buffer = None
        if SocketOption.BUFFER_THRESHOLDS in self._set:
            low, high = self._set[SocketOption.BUFFER_THRESHOLDS]
            buffer = BufferManager(low_bytes=low, high_bytes=high)
        deadline_s = self._set.get(SocketOption.DEADLINE)
        if connection.dials and (deadline_s is not None or buffer is not None):
            connection.wait_for(
                deadline_s=deadline_s,
                expected_bytes=self._set.get(SocketOption.EXPECTED_SIZE, 0),
                buffer=buffer,
                buffered=buffered,
            )
