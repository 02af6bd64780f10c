"""Files that can wait, as downloads or as uploads."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cedos.api.asking import forget
from cedos.apps.files.getting import Getting
from cedos.apps.files.partial import OpenFolder
from cedos.apps.files.putting import Putting, UploadBody
from cedos.apps.files.server_link import Sessions
from cedos.commands.console.servers import Source
from cedos.commands.console.transfers import Endpoints, partial_of
from cedos.config.directories import directories
from cedos.model import Direction
from cedos.session import keys


@dataclass(frozen=True, slots=True)
class Move:
    """The mover of a file and its clean-up."""

    moving: Getting | Putting
    close: Callable[[], None]


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
        return Move(getting, partial.close)

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


def _key(identity: str, path: Path) -> str:
    return hashlib.sha256(os.fsencode(f"{identity}\0{path.absolute()}")).hexdigest()[:32]
