"""Parts of both sides' drivers: the machine's timer, kernel calls in turn, and the status file."""

import asyncio
import json
import math
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import structlog

from cedos.apps.sharing.own_identity import AnswerKind, expected
from cedos.apps.sharing.protocol.certificates import UntrustedError
from cedos.apps.sharing.protocol.messages import unpack
from cedos.apps.sharing.protocol.receipts import Contract
from cedos.apps.sharing.questions import (
    Asked,
    AskFacts,
    AskReceipts,
    GatewayFacts,
    GivenReceipts,
    pack_question,
)
from cedos.apps.sharing.store import SharingStore
from cedos.errors import CedosError

T = TypeVar("T")
# Send a question to the gateway and return its answer. CedosError: the gateway does not answer.
Ask = Callable[[bytes], Awaitable[bytes]]

_LONGEST_S: Final = 1.0
STATUS_S: Final = 1.0
_OLD_S: Final = 5.0
RECEIPTS_S: Final = 5.0

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class SharingMachine(Protocol):
    """The part of the two machines that `MachineTimer` needs."""

    def handle_timer(self, now_s: float) -> None: ...

    def next_timer(self) -> float | None: ...


class MachineTimer:
    """The timer of a machine; call `arm` after each event."""

    def __init__(
        self, machine: SharingMachine, now_s: Callable[[], float], due: Callable[[], None]
    ) -> None:
        self._machine, self._now_s, self._due = machine, now_s, due
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        self.close()
        at_s = self._machine.next_timer()
        if at_s is not None and at_s < math.inf:
            # Host clocks may be set, and the host may sleep: nothing is slept through for long.
            rest_s = min(max(at_s - self._now_s(), 0.0), _LONGEST_S)
            self._handle = self._loop.call_later(rest_s, self._rings)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _rings(self) -> None:
        self._handle = None
        self._machine.handle_timer(self._now_s())
        self._due()


class KernelCalls:
    """Calls that block for up to half a second, one after the other, outside the event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "sharing")
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Let work go on beside; what fails there is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    async def close(self) -> None:
        """Return when all calls have ended."""
        for _ in range(len(self._tasks) + 1):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown()

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("sharing fails", exc_info=error)


def keep_contract(store: SharingStore, contract: Contract, join: bytes, confirm: bytes) -> None:
    """Keep the datagrams of a contract, and the certificates in them for the names."""
    store.add_contract(contract.number, join, confirm)
    for each in (join, confirm):
        store.add_certificate(unpack(each).certificate)


async def asked(ask: Ask, question: Asked, kind: type[AnswerKind]) -> AnswerKind:
    """Ask the gateway. CedosError: it does not answer, or refuses."""
    return expected(await ask(pack_question(question)), kind)


async def follow_gateway(
    ask: Ask,
    highest: Callable[[], int],
    on_revocations: Callable[[bytes], None],
    on_receipt: Callable[[bytes], None],
    again_s: float = RECEIPTS_S,
) -> None:
    """Fetch withdrawn certificates and this host's receipts, again and again."""
    while True:
        with suppress(CedosError):
            facts = await asked(ask, AskFacts(), GatewayFacts)
            try:
                on_revocations(facts.revocations)
            except UntrustedError as error:
                _log.warning("revocations are not accepted", why=str(error))
            given = await asked(ask, AskReceipts(highest()), GivenReceipts)
            for each in given.receipts:
                try:
                    on_receipt(each)
                except UntrustedError as error:
                    _log.warning("a receipt is not accepted", why=str(error))
        await asyncio.sleep(again_s)


def write_status(path: Path, facts: dict[str, Any]) -> None:
    """Write what `cedos share` shows; a runtime directory that cannot be written is no failure."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps({"at_s": time.monotonic(), "pid": os.getpid(), **facts}))
        draft.replace(path)


def read_status(path: Path) -> dict[str, Any] | None:
    """Return what a living process wrote; None: none does."""
    try:
        found = json.loads(path.read_text())
        age_s = time.monotonic() - float(found["at_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if 0 <= age_s < _OLD_S else None
