"""What the user subscribed to: one file, to be edited by hand."""

import json
import os
import re
import secrets
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec

from cedos.config import toml_file
from cedos.errors import ConfigError
from cedos.session import keys

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TIME: Final = re.compile(r"([01]?\d|2[0-3]):[0-5]\d")


class Subscription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`by`: the time of day until when new episodes shall be here; `keep`: so many of the newest."""

    url: str
    by: str = "07:00"
    keep: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3

    def __post_init__(self) -> None:
        check(self.url, self.by)

    def next_unix_s(self) -> float:
        """The next time that `by` is."""
        hour, minute = map(int, self.by.split(":"))
        now = datetime.now()
        found = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return (found if found > now else found + timedelta(days=1)).timestamp()


def check(url: str, by: str, url_name: str = "url", by_name: str = "by") -> None:
    """ValueError: one of them is wrong; it is called as whoever gave it does."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f'{url_name} must be one such as "https://example.org/feed.xml"')
    if not _TIME.fullmatch(by):
        raise ValueError(f'{by_name} must be a time of day such as "07:00"')


class _PodcastFile(msgspec.Struct, forbid_unknown_fields=True):
    podcasts: dict[str, Subscription] = {}


class Subscriptions:
    """Raises (each call): ConfigError, the file is wrong or cannot be used."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or keys.folder() / "podcasts.toml"

    def all(self) -> dict[str, Subscription]:
        if not self.path.exists():
            return {}
        found = toml_file.read(self.path, _PodcastFile).podcasts
        for name in found:
            self._check(name, f"{self.path}:")
        return found

    def free(self, name: str, url: str) -> Subscription | None:
        """What a name stands for already, of the same URL; None: it can be given."""
        self._check(name, "--name:")
        known = self.all().get(name)
        if known is not None and known.url != url:
            raise ConfigError(
                f"there is a podcast {name} already, of {known.url}; another --name would be right"
            )
        return known

    def add(self, name: str, subscription: Subscription) -> None:
        """A new one, or another time for one of the same URL."""
        self.free(name, subscription.url)
        self._write({**self.all(), name: subscription})

    def remove(self, name: str) -> None:
        rest = self.all()
        if rest.pop(name, None) is None:
            known = ", ".join(rest) or "none yet"
            raise ConfigError(f"there is no podcast {name}; there are: {known}")
        self._write(rest)

    @staticmethod
    def _check(name: str, where: str) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f'{where} "{name}" cannot be the name of a podcast: letters, digits, and . _ - '
                "behind the first would be right"
            )

    def _write(self, wanted: dict[str, Subscription]) -> None:
        lines = ["# Podcasts of cedos-pod; may be edited by hand.\n"]
        for name, each in wanted.items():
            lines += [
                f"\n[podcasts.{json.dumps(name)}]\nurl = {json.dumps(each.url)}\n",
                f"by = {json.dumps(each.by)}\nkeep = {each.keep}\n",
            ]
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                with draft.open("w") as file:
                    file.write("".join(lines))
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(self.path)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror or error}") from error
