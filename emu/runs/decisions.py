"""Records of a daemon's history after a run: its decisions, those that changed something, predictions."""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from cedos.config.directories import Directories
from cedos.errors import DataSetError
from cedos.model import Decision, FlowKey, FlowRecord, NetworkKind, Strategy, StrategyKind
from cedos.storage.history import History
from emu.testbed.access import INTERFACES

_KINDS = {interface: str(kind) for kind, interface in INTERFACES.items()}


def rows_of(flows: Iterable[FlowRecord], zero_unix_s: float) -> list[dict[str, Any]]:
    """Return a row for each flow that was one transfer and had a prediction."""
    found = []
    for flow in flows:
        known = flow.prediction
        if known is None:
            continue
        low_s, median_s, high_s, mean_s = known.expected[known.strategy]
        found.append(
            {
                "ended_s": flow.ended_unix_s - zero_unix_s,
                "strategy": known.strategy,
                "network": _KINDS.get(known.network, known.network),
                "alone": not known.strategy.startswith("mptcp"),
                "direction": str(known.direction),
                "size_bytes": known.carried_bytes,
                "rate_age_s": known.rate_age_s,
                "low_s": low_s,
                "median_s": median_s,
                "high_s": high_s,
                "mean_s": mean_s,
                "took_s": known.took_s,
                "lengthened": known.lengthened,
                "by_strategy": {name: each[1] for name, each in known.expected.items()},
                "columns": dict(known.columns),
            }
        )
    return found


_MOST = 1_000_000

Rows = list[dict[str, Any]]


def recorded(directory: Path, zero_unix_s: float) -> tuple[Rows, Rows, Rows]:
    """Return the rows of decisions, of switches among them, and of predictions; empty without a daemon.

    Args:
        directory: the state directory of the policy's daemon.
        zero_unix_s: the instant from which the run's seconds count.
    """
    file = Directories(directory, directory).history
    if not file.exists():
        return [], [], []
    history = History(file)
    try:
        decisions = sorted(history.decisions(limit=_MOST), key=lambda each: each.number)
        flows = history.flows(limit=_MOST)
    finally:
        history.close()
    rows = [
        {
            "number": each.number,
            "at_s": each.made_unix_s - zero_unix_s,
            "made_unix_s": each.made_unix_s,
            "choice": str(each.choice),
            "reason": each.reason,
            "record": msgspec.json.encode(each, enc_hook=str).decode(),
        }
        for each in decisions
    ]
    return rows, switches(decisions, zero_unix_s), rows_of(flows, zero_unix_s)


def predictions_of(file: Path) -> Rows:
    """Return the expected and actual times of ended transfers from a daemon's history.

    DataSetError: the file is no history.
    """
    try:
        with file.open("rb") as start:
            sqlite = start.read(16) == b"SQLite format 3\0"
    except OSError as error:
        raise DataSetError(f"{file}: {error.strerror}") from error
    if not sqlite:
        raise DataSetError(f"{file}: not a history of the daemon (history.sqlite)")
    with tempfile.TemporaryDirectory() as folder:
        # Open a copy: opening would move a damaged file aside, and a daemon may be writing to this one.
        for each in (file, file.with_name(f"{file.name}-wal")):
            if each.exists():
                shutil.copy(each, folder)
        history = History(Path(folder) / file.name)
        try:
            if history.notice:
                raise DataSetError(f"{file}: cannot be read as the daemon's history")
            return rows_of(history.flows(limit=_MOST), 0.0)
        finally:
            history.close()


def switches(decisions: Iterable[Decision], zero_unix_s: float) -> Rows:
    """Return the decisions that differ from the one before about the same subject, in order.

    A subject is a living connection, a destination, or the default of all new connections.
    """
    last: dict[tuple[FlowKey | None, str | None], Strategy] = {}
    found = []
    for decision in decisions:
        about = (decision.transfer.flow, decision.transfer.server_name)
        before = last.get(about)
        last[about] = decision.choice
        if before is not None and before != decision.choice:
            found.append(
                {
                    "at_s": decision.made_unix_s - zero_unix_s,
                    "what": _what(*about),
                    "to": _to(decision.choice),
                }
            )
    return found


def _what(flow: FlowKey | None, server_name: str | None) -> str:
    if flow is not None:
        return "connection"
    return "default" if server_name is None else "destination"


def _to(choice: Strategy) -> str:
    if choice.kind is StrategyKind.DEFER:
        return "none"
    if len(choice.networks) > 1:
        return "both"
    return _KINDS.get(choice.networks[0], str(NetworkKind.WIFI))
