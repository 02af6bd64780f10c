"""Which episodes are wanted until when, and which are here: a file that survives crashes and reboots."""

from enum import StrEnum
from pathlib import Path

import msgspec

from cedos.errors import ConfigError
from cedos.storage import whole_file


class EpisodeState(StrEnum):
    """Of an episode that was ever wanted."""

    WANTED = "wanted"
    HERE = "here"
    REFUSED = "refused"


class EpisodeRecord(msgspec.Struct):
    """Wanted at `by_unix_s`; `came_unix_s` 0: not here yet.

    `by_network`: bytes that came, by interface; `metered_bytes` of them while that was metered.
    """

    podcast: str
    guid: str
    title: str
    url: str
    size_bytes: int
    by_unix_s: float
    file: str
    state: EpisodeState = EpisodeState.WANTED
    why: str = ""
    came_unix_s: float = 0.0
    by_network: dict[str, int] = {}
    metered_bytes: int = 0


class _BookFile(msgspec.Struct):
    episodes: list[EpisodeRecord] = []
    feed_errors: dict[str, str] = {}


class EpisodeBook:
    """Raises: ConfigError, the file is something else, or cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = msgspec.json.decode(path.read_bytes(), type=_BookFile)
        except FileNotFoundError:
            self._file = _BookFile()
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{path}: {error}; move it away to start anew") from error

    @property
    def episodes(self) -> list[EpisodeRecord]:
        return self._file.episodes

    @property
    def feed_errors(self) -> dict[str, str]:
        """Why a podcast's feed could not be read at the last look; those that could are not in it."""
        return self._file.feed_errors

    def wanted(self) -> list[EpisodeRecord]:
        """The most urgent first."""
        found = [each for each in self.episodes if each.state is EpisodeState.WANTED]
        return sorted(found, key=lambda each: each.by_unix_s)

    def knows(self, podcast: str, guid: str) -> bool:
        return any(each.podcast == podcast and each.guid == guid for each in self.episodes)

    def add(self, episode: EpisodeRecord) -> None:
        self.episodes.append(episode)

    def wanted_by(self, podcast: str, by_unix_s: float) -> None:
        """What is still wanted of it is wanted by another time."""
        for each in self.wanted():
            if each.podcast == podcast:
                each.by_unix_s = by_unix_s

    def forget(self, podcast: str) -> None:
        """Nothing of it is wanted any more; files that are here stay."""
        self._file.episodes = [each for each in self.episodes if each.podcast != podcast]
        self.feed_errors.pop(podcast, None)

    def save(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            whole_file.write(self._path, msgspec.json.format(msgspec.json.encode(self._file)))
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror or error}") from error
