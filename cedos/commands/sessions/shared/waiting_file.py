"""A file that can wait until a time: what is told of it, and what moves it once it is its turn."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cedos.api.asking.followed_transfer import forget
from cedos.commands.sessions.shared.sources import Source
from cedos.commands.sessions.shared.transfers import Endpoints, partial_of
from cedos.commands.sessions.shared.web_target import WebTarget
from cedos.config.directories import directories
from cedos.files.getting import Getting
from cedos.files.progress import Progress
from cedos.files.putting import Putting
from cedos.files.server_link import Sessions
from cedos.files.upload_body import UploadBody
from cedos.model import Direction
from cedos.session import keys


class MovedFile(Protocol):
    """`Getting` or `Putting`."""

    @property
    def progress(self) -> Progress: ...

    @property
    def told(self) -> dict[str, Any]: ...

    async def ask(self) -> None: ...

    async def run(self) -> None: ...


def _not_noted(_by_network: Mapping[str, int]) -> None: ...


@dataclass(frozen=True, slots=True)
class Move:
    """What moves a file, and what lets go of it.

    Attributes:
        came_before: bytes by network that an earlier program has noted; `note`: notes those in all.
    """

    moving: MovedFile
    close: Callable[[], None]
    came_before: Callable[[], Mapping[str, int]] = dict
    note: Callable[[Mapping[str, int]], None] = _not_noted


@dataclass(frozen=True, slots=True)
class WaitingFile:
    """One file.

    Attributes:
        key: its own for good, also after a restart of its program.
        name: in tables and lines; `origin`: where it comes from, in full; `path`: here.
        facts: of --json.
        move: over such sessions, with so much patience.
    """

    direction: Direction
    key: str
    name: str
    origin: str
    path: Path
    facts: Mapping[str, str]
    move: Callable[[Sessions, float], Move]


def download(source: Source, target: Path, ends: Endpoints) -> WaitingFile:
    """From a server. `move` raises TransferError: it cannot be written."""
    # The server is who has the key, at whatever address.
    identity = f"{keys.to_text(ends.server.key)}/{source.path}"
    key = _key(identity, target)

    def move(sessions: Sessions, patience_s: float) -> Move:
        if target.exists():  # it may have come while no daemon was there to hear of it
            forget(directories().socket, key)
        partial = partial_of(target, identity)
        getting = Getting(source.path, partial, sessions, patience_s)
        return Move(getting, partial.close, lambda: partial.by_network, partial.note_networks)

    facts = {"path": str(target), "from": source.name}
    return WaitingFile(Direction.DOWN, key, target.name, source.name, target, facts, move)


def upload(source: Path, path: str, where: str, ends: Endpoints) -> WaitingFile:
    """To a server. `move` raises TransferError: it cannot be read."""
    key = _key(f"{keys.to_text(ends.server.key)}/{path}\0up", source)

    def move(sessions: Sessions, patience_s: float) -> Move:
        putting = Putting(UploadBody(source), path, sessions, patience_s)
        return Move(putting, putting.close)

    facts = {"path": str(source), "to": where}
    return WaitingFile(Direction.UP, key, source.name, str(source), source, facts, move)


def web_upload(source: Path, url: str, target: WebTarget) -> WaitingFile:
    """To a web server, by the gateway. Errors: as of `upload`."""

    def move(sessions: Sessions, patience_s: float) -> Move:
        body, asked = target.prepared(source, url)
        putting = Putting(body, url, sessions, patience_s, asked)
        return Move(putting, putting.close)

    facts = {"path": str(source), "to": url}
    key = _key(f"{target.method} {url}\0up", source)
    return WaitingFile(Direction.UP, key, source.name, str(source), source, facts, move)


def _key(identity: str, path: Path) -> str:
    return hashlib.sha256(f"{identity}\0{path.absolute()}".encode()).hexdigest()[:32]
