"""A journal's bytes as records: what cedos writes, and nothing else, whatever the bytes are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

import msgspec

from cedos.steer.journal.records import HostRecord, Record

_DECODER: Final = msgspec.json.Decoder(Record)
_SHOWN: Final = 80
_SUM_BYTES: Final = 8
_TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class JournalReading:
    """`foreign`: what stands there, legibly, and is nothing that cedos may undo; in words.

    `damaged`: something is illegible or missing.
    """

    records: Sequence[Record] = ()
    foreign: Sequence[str] = field(default=())
    damaged: bool = False


def read_records(data: bytes) -> JournalReading:
    """Return all whole records, oldest first.

    A torn last line is no damage: a process was killed while it wrote it, and its change never made.
    Nor is a file without a line: whether there should be one is told by what stands in the kernel.
    """
    records: list[Record] = []
    foreign: list[str] = []
    damaged = False
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        body, whole = _checked(line)
        try:
            record = _DECODER.decode(body)
            if whole:
                records.append(record)
            else:  # (What is cut off before its sum is torn, too.)
                damaged = damaged or number < len(lines)
        except msgspec.ValidationError as error:
            if not line.startswith(b"{"):
                damaged = True
                continue
            foreign.append(f"line {number} of the journal ({_shown(line)}): {_escaped(str(error))}")
        except (ValueError, RecursionError):
            torn = number == len(lines) and line.isascii() and b"\0" not in line
            damaged = damaged or (bool(line) and not torn)
    if len(foreign) > _TOLD:
        foreign[_TOLD:] = [f"{len(foreign) - _TOLD} more lines like these"]
    if records and not isinstance(records[0], HostRecord):
        damaged = True
    return JournalReading(records, foreign, damaged)


def journal_line(record: Record) -> bytes:
    """Return a record as a line of the file; its sum shows a lost digit."""
    body = msgspec.json.encode(record)
    return b"%b %08x\n" % (body, crc32(body))


def _checked(line: bytes) -> tuple[bytes, bool]:
    """Return a line without its sum, and whether the sum is right."""
    body, _, checksum = line.rpartition(b" ")
    if len(checksum) != _SUM_BYTES or not body.endswith(b"}"):
        return line, False
    return body, checksum == b"%08x" % crc32(body)


def _shown(line: bytes) -> str:
    text = _escaped(line[:_SHOWN].decode("utf-8", "replace"))
    return f"{text}..." if len(line) > _SHOWN else text


def _escaped(text: str) -> str:
    """Return a terminal does nothing by it."""
    return ascii(text)[1:-1][: 4 * _SHOWN]
