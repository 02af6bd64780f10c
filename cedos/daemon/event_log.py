"""The event log (`cedos up --record`): all that the controller was told, so that it can be run again.

A file of gzip members with records in msgpack. The first record is the header; each other one is
`[time, event, checksum of its commands]`, with the monotonic time in s. `cedos-emu replay` reads it. The
names of hosts are replaced, the same one by the same, unless the user asks for them.
"""

import gzip
import os
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec
import structlog

from cedos.controller.codec import encode_commands, encode_event, hidden
from cedos.controller.commands import Command
from cedos.controller.deadlines import rows as kept_rows
from cedos.controller.events import Event
from cedos.errors import HistoryError
from cedos.selector.deadlines.transfer_table import TableTransfer

_log = structlog.get_logger(__name__)

_TOGETHER_S: Final = 2.0
# Events are written after this many, or after `_TOGETHER_S`.
_TOGETHER: Final = 2_000
# A larger file is not continued: a day has some 100 MB.
MOST_BYTES: Final = 500_000_000


class EventLog:
    """A log that is being written.

    Args:
        path: the file, which must not exist.
        header: the controller's configuration and kept state (`startup.log_header`).
        names: write the names of hosts as they are.

    Raises:
        HistoryError: the file exists, or cannot be made.
    """

    def __init__(self, path: Path, header: Mapping[str, object], *, names: bool = False) -> None:
        self._path = path
        key = secrets.token_bytes(16)
        self._hide = None if names else lambda text: hidden(text, lambda label: _hash(label, key))
        rules, transfers = header.get("rules"), header.get("transfers")
        if self._hide is not None and isinstance(rules, dict):
            rules = {number: _hidden(rule, self._hide) for number, rule in rules.items()}
        if self._hide is not None and isinstance(transfers, dict):
            hidden_rows = [_row(row, by, self._hide) for row, by in kept_rows(transfers)]
            transfers = {**transfers, "rows": hidden_rows}
        self._waiting: list[bytes] = [
            msgspec.msgpack.encode({**header, "rules": rules, "transfers": transfers})
        ]
        self._since_s = float("-inf")
        self._written_bytes = 0
        try:
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        except FileExistsError:
            raise HistoryError(f"{path} is there already: another name would be right") from None
        except OSError as error:
            raise HistoryError(f"{path} cannot be made: {error.strerror}") from None
        self._ended = False

    def add(self, event: Event, now_s: float, commands: Sequence[Command]) -> None:
        """Record an event and what came of it; a file that cannot be written ends, and it is logged."""
        if self._ended:
            return
        checksum = zlib.crc32(encode_commands(commands, self._hide))
        record = (now_s, encode_event(event, self._hide), checksum)
        self._waiting.append(msgspec.msgpack.encode(record))
        if len(self._waiting) >= _TOGETHER or now_s - self._since_s >= _TOGETHER_S:
            self._since_s = now_s
            self._write()

    def close(self) -> None:
        """Write what waits, and close the file."""
        if not self._ended:
            self._write()
            self._end("")

    def _write(self) -> None:
        # Each record has its length before it, so that a reader needs no schema to find the next one.
        block = b"".join(len(each).to_bytes(4, "big") + each for each in self._waiting)
        self._waiting.clear()
        try:
            self._written_bytes += self._file.write(gzip.compress(block, 6))
            self._file.flush()
        except OSError as error:
            self._end(f"{self._path} cannot be written: {error.strerror}")
            return
        if self._written_bytes > MOST_BYTES:
            self._end(f"{self._path} has {MOST_BYTES // 1_000_000} MB")

    def _end(self, why: str) -> None:
        self._ended = True
        if why:
            _log.warning("events are not recorded any more", why=why)
        self._file.close()


def _hidden(rule: object, hide: Callable[[str], str]) -> object:
    """Return a kept rule without the name of its host."""
    if isinstance(rule, dict) and isinstance(rule.get("host"), str):
        return {**rule, "host": hide(rule["host"])}
    return rule


def _row(row: TableTransfer, by: dict[str, int], hide: Callable[[str], str]) -> list[object]:
    """Return a kept transfer without its name and its server's."""
    fields = msgspec.to_builtins(row)
    fields |= {"name": hide(f"://{row.name}"), "server": hide(f"://{row.server}")}
    return [fields, by]


def _hash(label: str, key: bytes) -> str:
    return "h" + blake2b(label.encode(), key=key, digest_size=5).hexdigest()
