"""The table of transfers as a daemon has left it: for the next one, and for people while none answers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from cedos.api.transfers import TransferInTable, TurnMessage
from cedos.controller.deadlines import rows
from cedos.kernel import own_file

FILE: Final = "transfers.json"


@dataclass(frozen=True, slots=True)
class KeptTransfers:
    """The transfers as a daemon knew them `at_unix_s`, by deadline; they may have changed since."""

    transfers: list[TransferInTable]
    at_unix_s: float

    @classmethod
    def read(cls, state: Path) -> Self:
        """Read the file without a daemon. Errors: OSError, msgspec.MsgspecError, RecursionError."""
        path = state / FILE
        kept = msgspec.json.decode(own_file.read(path))
        transfers = [
            TransferInTable.of(each, by, running=False, turn=TurnMessage())
            for each, by in rows(kept)
        ]
        transfers.sort(key=lambda each: each.deadline_unix_s)
        return cls(transfers, path.stat().st_mtime)
