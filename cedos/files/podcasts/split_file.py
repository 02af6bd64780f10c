"""How much of an episode came over which kind of network: beside its part, as old as that is.

The book is written every few seconds; what came since then is in the part, also after a kill.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cedos.files.podcasts.episode_book import EpisodeRecord
from cedos.kernel import own_file

_MOST_BYTES: Final = 1000
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SplitFile:
    """Written with each piece; where it cannot be, the book alone has the counts."""

    def __init__(self, episode: EpisodeRecord) -> None:
        self._episode = episode
        self._path = Path(f"{episode.file}.part.split.json")
        self._number: int | None = None

    def counts(self) -> tuple[int, int]:
        """Unmetered and metered bytes, as far as the book or the file has them."""
        unmetered = metered = 0
        with suppress(OSError, msgspec.MsgspecError):
            kept = own_file.read(self._path, _MOST_BYTES)
            unmetered, metered = msgspec.json.decode(kept, type=tuple[int, int])
        of = self._episode
        return max(of.unmetered_bytes, unmetered), max(of.metered_bytes, metered)

    def write(self) -> None:
        """The counts of the episode as they are now."""
        of = self._episode
        with suppress(OSError):
            if self._number is None:
                number = os.open(self._path, _FLAGS, 0o600)
                try:
                    own_file.check(number, self._path)
                except OSError:
                    os.close(number)
                    raise
                self._number = number
            # Of one length always, so that nothing of what was there before is left behind it.
            os.pwrite(self._number, b"[%20d, %20d]" % (of.unmetered_bytes, of.metered_bytes), 0)

    def close(self) -> None:
        if self._number is not None:
            os.close(self._number)
            self._number = None

    def remove_with_part(self) -> None:
        """Without a part the book has all; to be called once that is written."""
        if not Path(f"{self._episode.file}.part").exists():
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
