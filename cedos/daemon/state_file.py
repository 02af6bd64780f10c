"""Small things in the state directory that survive a restart, as JSON files."""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from cedos.controller.decisions.user_rules import ALIASES, UserRules
from cedos.controller.outbox import Outbox
from cedos.kernel import own_file
from cedos.logs import get_logger

_log = get_logger(__name__)

_RULES: Final = "the rules"
# The pause before what could not be written is tried again.
_AGAIN_S: Final = 10.0


def read(path: Path, what: str) -> Any:
    """Return a file's content; None without a file, or if it cannot be used (which is logged)."""
    try:
        return msgspec.json.decode(own_file.read(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        unusable(path, what, error)
        return None


def unusable(path: Path, what: str, error: Exception) -> None:
    """Says that a file cannot be used; it is put aside, as things begin anew and would replace it."""
    aside = own_file.free_name_beside(path)
    try:
        path.rename(aside)
    except OSError as failed:
        _log.warning(f"{what} cannot be used, nor put aside", file=str(path), why=str(failed))
        return
    _log.warning(f"{what} cannot be used", file=str(path), why=str(error), kept_as=str(aside))


def write(path: Path, state: Any, what: str, *, synced: bool = False) -> bool:
    """Write a file, whole or not at all; return whether it was: an error is logged."""
    try:
        own_file.write(path, msgspec.json.encode(state), synced=synced)
    except OSError as error:
        _log.warning(f"{what} cannot be kept", file=str(path), why=str(error))
        return False
    return True


class StateFile:
    """A file that is written off the event loop, and again after a failure."""

    def __init__(self, path: Path, what: str, *, synced: bool = False) -> None:
        self._path, self._what, self._synced = path, what, synced
        self._newest = self._written = object()
        self._failed = False
        self._news, self._turn, self._writing = asyncio.Event(), asyncio.Lock(), threading.Lock()

    def take(self, state: object) -> None:
        """Have this written by `run`."""
        self._newest = state
        self._news.set()

    async def run(self) -> None:
        """Write what is taken; and, while that fails, try it again."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S if self._failed else None):
                    await self._news.wait()
            self._news.clear()
            await self.wait_written()

    async def wait_written(self) -> None:
        """Return when what was taken until now is written, or was tried."""
        async with self._turn:
            if self._newest is not self._written:
                await asyncio.to_thread(self.write)

    def write(self) -> None:
        """Write what was taken last, unless that is done; any thread may."""
        with self._writing:
            newest = self._newest
            if newest is not self._written:
                self._failed = not write(self._path, newest, self._what, synced=self._synced)
                self._written = self._written if self._failed else newest


class RulesFile(StateFile):
    """The file of the user's rules."""

    def __init__(self, state: Path) -> None:
        super().__init__(state / "rules.json", _RULES, synced=True)

    @property
    def problems(self) -> list[str]:
        """Return what is not kept, and which files could not be used and are still there."""
        path = self._path
        unkept = f"{path} cannot be written: your rules hold until the daemon ends, not longer"
        return [unkept] * self._failed + [
            f"rules are not in force: {aside} could not be used; add them anew with `cedos rule add`,"
            " and remove that file"
            for aside in sorted(path.parent.glob(f"{path.name}.aside-*"))
        ]

    def read(self) -> Mapping[str, object]:
        """Return the rules that were kept. A file of which some cannot be used is put aside."""
        kept = read(self._path, _RULES)
        usable: Mapping[str, object] = UserRules(Outbox(), kept).state()
        if kept is not None and (not isinstance(kept, dict) or {*kept} - {*usable, ALIASES}):
            unusable(self._path, _RULES, ValueError("some are no rules"))
            self.take(usable)
            self.write()
        return usable
