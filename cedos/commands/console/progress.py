"""A line on a terminal with the progress of a transfer, its networks, or what it waits for."""

import shutil
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Final, TextIO

from cedos.commands.console.render import duration, size
from cedos.plain_text import plain

if TYPE_CHECKING:
    from cedos.apps.files.server_link import Progress


_RATE_OVER_S: Final = 5.0
_LEAST_NAME: Final = 8


class ProgressLine:
    """A line that is redrawn in place, only on a terminal and without `quiet`."""

    def __init__(
        self, name: str, progress: "Progress", *, quiet: bool, out: TextIO | None = None
    ) -> None:
        self._name, self._progress = name, progress
        self._out = out or sys.stderr
        self._shown = not quiet and self._out.isatty()
        self._marks: deque[tuple[float, int]] = deque()

    @property
    def shown(self) -> bool:
        return self._shown

    def rate(self, now_s: float) -> float | None:
        """Return the bytes per second of the last seconds; None at the start."""
        marks, have = self._marks, self._progress.have_bytes
        if marks and have < marks[-1][1]:
            marks.clear()
        marks.append((now_s, have))
        while marks[0][0] < now_s - _RATE_OVER_S:
            marks.popleft()
        passed_s = now_s - marks[0][0]
        return (have - marks[0][1]) / passed_s if passed_s > 0.5 else None

    def text(self, now_s: float, doing: str | None = None, width: int | None = None) -> str:
        """Return the line; `doing` replaces the networks and the state of the connection.

        A line longer than `width` loses the last part of `doing`, then the rate, then the end of
        the name.
        """
        progress = self._progress
        parts = [size(progress.have_bytes)]
        rate = self.rate(now_s)
        whole = progress.size_bytes
        if whole:
            share = progress.have_bytes / whole
            parts = [f"{share:4.0%} of {size(whole)}"]
        if rate:
            parts.append(f"{size(rate)}/s")
            if whole and doing is None:
                parts.append(f"{duration((whole - progress.have_bytes) / rate)} left")
        connection = progress.connection
        if doing is not None:
            parts += [doing] if doing else []
        elif connection is not None:
            networks = sorted({path.network for path in connection.paths() if not path.stalled})
            parts.append("+".join(networks) if networks else "waiting for a network")
        elif progress.state:
            parts.append(progress.state)
        text = f"{self._name}: {', '.join(parts)}"
        if width is None or len(text) <= width or not doing:
            return text[:width]
        said = doing.split("; ")
        for kept in range(len(said) - 1, 0, -1):
            text = f"{self._name}: {', '.join([*parts[:-1], '; '.join(said[:kept])])}"
            if len(text) <= width:
                return text
        rest = f": {parts[0].strip()}, {said[0]}"
        name = self._name
        if len(name) + len(rest) > width:
            name = f"{name[: max(width - len(rest) - 1, _LEAST_NAME)]}…"
        return f"{name}{rest}"[:width]

    def draw(self, doing: str | None = None) -> None:
        if self._shown:
            width = max(shutil.get_terminal_size().columns - 1, 20)
            text = self.text(time.monotonic(), doing, width)
            print(f"\r\033[K{plain(text)}", end="", file=self._out, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=self._out, flush=True)

    def end(self) -> None:
        """Remove the line for good."""
        self.clear()
        self._shown = False
