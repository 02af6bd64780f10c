"""The stream of a connection: TCP's semantics, over whatever networks there are."""

from collections.abc import Callable

from cedos.errors import SessionError
from cedos.model import Label
from cedos.session.protocol.schedulers.interface import RANK, rank_of
from cedos.session.sockets.labelled import STREAM_LABEL, Labelled


class Streamed(Labelled):
    """The part of a connection that has to do with its stream; `connection.Connection` is the whole."""

    _label = STREAM_LABEL

    async def read(self, most_bytes: int = 1 << 18) -> bytes | memoryview:
        """The next bytes of the stream, as they came; empty when the peer has finished it.

        Raises:
            SessionError: the session has ended before the stream did.
        """
        while True:
            data = self.read_now(most_bytes)
            if data or self._core.at_eof:
                return data
            self._check()
            await self._something()

    def read_now(self, most_bytes: int = 1 << 18) -> bytes | memoryview:
        """As `read`, but empty too where nothing is there yet."""
        data = self._core.read(most_bytes)
        if data:
            self._take_back()
        return data

    async def read_exactly(self, size: int) -> bytes:
        """So many bytes of the stream.

        Raises:
            SessionError: the stream or the session ends before.
        """
        parts: list[bytes | memoryview] = []
        left = size
        while left:
            part = await self.read(left)
            if not part:
                raise SessionError(
                    f"the stream ended {left} bytes before the {size} that were wanted"
                )
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hands bytes to the stream; returns when there is room to keep them, not when they are sent.

        `bytes` are kept without a copy until the peer has acknowledged them.

        Raises:
            SessionError: the session has ended, or the stream was finished.
        """
        whole = data if isinstance(data, bytes) else bytes(data)
        while whole:
            taken = self.write_now(whole)
            if taken == len(whole):
                return
            whole = whole[taken:]
            await self._something()

    def write_now(self, data: bytes) -> int:
        """As `write`, but takes only what there is room for now; how many bytes that was."""
        self._check()
        taken = self._core.write(data)
        self._sent(RANK[self._label])
        return taken

    async def write_source(
        self, fetch: Callable[[int, int], bytes | memoryview], length: int
    ) -> None:
        """Appends bytes that `fetch(offset, count)` gives whenever they have to be sent (again).

        They take no replay memory: a file, say, that does not change.
        """
        self._check()
        self._core.write_source(fetch, length)
        self._sent(RANK[self._label])

    def finish(self) -> None:
        """Ends the stream in this direction; the other one goes on."""
        self._check()
        self._core.finish()
        self.flow.pump_soon()

    @property
    def label(self) -> Label:
        """The stream's label; may be set at any time, for what has not been sent yet."""
        return self._label

    @label.setter
    def label(self, label: Label) -> None:
        rank = rank_of(label)
        self._label = label
        self._core.sender.label_stream(rank)
        self.flow.pump_soon()
