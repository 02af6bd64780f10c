"""Files that can wait, as downloads or as uploads to a server or to the web."""

import hashlib
import json
import mimetypes
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

from cedos.api.asking import forget
from cedos.apps.files.getting import Getting
from cedos.apps.files.messages import WebUpload
from cedos.apps.files.partial import OpenFolder
from cedos.apps.files.putting import Putting, UploadBody
from cedos.apps.files.server_link import Sessions
from cedos.commands.console.manual import Parsed
from cedos.commands.console.servers import Source
from cedos.commands.console.transfers import Endpoints, partial_of
from cedos.config.directories import directories
from cedos.model import Direction
from cedos.session import keys

_MOST_HEADERS: Final = 16_384
_MOST_FIELDS: Final = 32
_LONGEST_VALUE: Final = 8_192


def _headers(text: str) -> list[tuple[str, str]]:
    lines = [text]
    if text.startswith("@"):
        try:
            lines = Path(text[1:]).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{text[1:]} cannot be read: {error}") from None
    found = []
    for line in filter(None, map(str.strip, lines)):
        name, colon, value = line.partition(":")
        token = name and all(each.isalnum() or each in "!#$%&'*+-.^_`|~" for each in name)
        good = name.isascii() and line.isprintable() and len(line) <= _LONGEST_VALUE
        if not colon or not token or not good:
            raise ValueError("a header such as 'Authorization: Bearer abc' would be right")
        found.append((name, value.strip()))
    return found


# A header as `Name: value`, or `@FILE` with one such line each. A file keeps secrets out of the
# process list.
HEADERS: Final = Parsed("header", _headers)


@dataclass(frozen=True, slots=True)
class WebTarget:
    """The target of an upload to a web server.

    `url` of a file, or of a folder with a slash at its end.
    """

    url: str
    headers: list[tuple[str, str]]
    keep_s: float

    def check(self, several: bool) -> None:
        """Check the options. UsageError: they exclude each other."""
        if sum(len(name) + len(value) for name, value in self.headers) > _MOST_HEADERS:
            raise click.UsageError(f"headers of {_MOST_HEADERS} bytes are the limit")
        if len(self.headers) >= _MOST_FIELDS:
            raise click.UsageError(f"{_MOST_FIELDS} headers are the limit")
        if several and not self.url.endswith("/"):
            raise click.UsageError(f"{self.url} is no folder; {self.url}/ would be right")

    def of(self, path: str) -> str:
        """Return the URL of a file, by its path below the folder."""
        if not self.url.endswith("/"):
            return self.url
        return self.url + quote(path, errors="surrogateescape")

    def prepared(
        self, source: Path, url: str, below: OpenFolder | None = None
    ) -> tuple[UploadBody, WebUpload]:
        """Return the body and its description. Arguments and errors: as of `UploadBody`.

        The id is the same for the same state of the file, and the same URL.
        """
        body = UploadBody(source, below)
        told = [url, str(source.absolute()), str(body.version)]
        name = hashlib.sha256(json.dumps(told).encode(errors="surrogateescape")).hexdigest()[:32]
        headers = list(self.headers)
        if not any(each.lower() == "content-type" for each, _ in headers):
            kind = mimetypes.guess_type(source.name)[0] or "application/octet-stream"
            headers.append(("Content-Type", kind))
        return body, WebUpload(name, headers, self.keep_s)


def _not_noted(_by_network: Mapping[str, int]) -> None: ...


@dataclass(frozen=True, slots=True)
class Move:
    """The mover of a file and its clean-up."""

    moving: Getting | Putting
    close: Callable[[], None]
    # Returns the bytes by network that earlier programs noted.
    came_before: Callable[[], Mapping[str, int]] = dict
    note: Callable[[Mapping[str, int]], None] = _not_noted  # notes the bytes by network in all


@dataclass(frozen=True, slots=True)
class WaitingFile:
    """A file that can wait."""

    direction: Direction
    key: str  # identifies the transfer, also after a restart of its program
    name: str  # its short name
    origin: str  # its whole source
    path: Path  # the local file
    facts: Mapping[str, str]  # for --json
    # Moves the file over sessions, with a limit for waiting.
    move: Callable[[Sessions, float], Move]


def download(
    source: Source, target: Path, ends: Endpoints, below: OpenFolder | None = None
) -> WaitingFile:
    """Describe a download. Its `move` raises TransferError: the file cannot be written."""
    # The key identifies the server, at any address.
    identity = f"{keys.to_text(ends.server.key)}/{source.path}"
    key = _key(identity, target)

    def move(sessions: Sessions, patience_s: float) -> Move:
        if os.path.lexists(target):  # it may have arrived while no daemon ran
            forget(directories().socket, key)
        partial = partial_of(target, identity, below)
        getting = Getting(source.path, partial, sessions, patience_s)
        return Move(getting, partial.close, lambda: partial.by_network, partial.note_networks)

    facts = {"path": str(target), "from": source.name}
    return WaitingFile(Direction.DOWN, key, target.name, source.name, target, facts, move)


def upload(
    source: Path, below: OpenFolder | None, path: str, where: str, ends: Endpoints
) -> WaitingFile:
    """Describe an upload. Its `move` raises TransferError: the file cannot be read."""
    key = _key(f"{keys.to_text(ends.server.key)}/{path}\0up", source)

    def move(sessions: Sessions, patience_s: float) -> Move:
        putting = Putting(UploadBody(source, below), path, sessions, patience_s)
        return Move(putting, putting.close)

    facts = {"path": str(source), "to": where}
    return WaitingFile(Direction.UP, key, source.name, str(source), source, facts, move)


def web_upload(source: Path, below: OpenFolder | None, url: str, target: WebTarget) -> WaitingFile:
    """Describe an upload to a web server by the gateway. Errors as of `upload`."""

    def move(sessions: Sessions, patience_s: float) -> Move:
        body, asked = target.prepared(source, url, below)
        putting = Putting(body, url, sessions, patience_s, asked)
        return Move(putting, putting.close)

    facts = {"path": str(source), "to": url}
    key = _key(f"PUT {url}\0up", source)
    return WaitingFile(Direction.UP, key, source.name, str(source), source, facts, move)


def _key(identity: str, path: Path) -> str:
    return hashlib.sha256(os.fsencode(f"{identity}\0{path.absolute()}")).hexdigest()[:32]
