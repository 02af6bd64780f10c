"""What was read of a stream before its program asked for it."""

from collections import deque


class ReadAhead:
    """Chunks, the oldest first; what is taken from them is copied once."""

    def __init__(self) -> None:
        self._chunks: deque[memoryview] = deque()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, data: bytes | memoryview) -> None:
        self._chunks.append(memoryview(data))
        self._size += len(data)

    def clear(self) -> bytes:
        """All of it; nothing is left."""
        found = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        return found

    def take(self, most: int, least: int, *, keep: bool) -> bytes:
        """One chunk, or as many as make `least`; `keep`: they stay for the next one, too."""
        parts: list[bytes] = []
        size = 0
        for chunk in list(self._chunks):
            part = bytes(chunk[: most - size])
            parts.append(part)
            size += len(part)
            if size >= least:
                break
        if not keep:
            self._drop(size)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def take_into(self, view: memoryview, *, keep: bool) -> int:
        """As much as there is room for; how many bytes."""
        size = 0
        for chunk in self._chunks:
            part = chunk[: len(view) - size]
            view[size : size + len(part)] = part
            size += len(part)
            if size == len(view):
                break
        if not keep:
            self._drop(size)
        return size

    def _drop(self, size: int) -> None:
        self._size -= size
        while size:
            first = self._chunks[0]
            if len(first) <= size:
                size -= len(first)
                self._chunks.popleft()
            else:
                self._chunks[0] = first[size:]
                return
