"""What a program's prefetching has learned, kept from one start to the next.

A file of JSON: how often each class of hints came true, and what the networks are like. A file that is
broken is no reason not to start: its content is lost, and that is logged.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from cedos.selector.prefetch.accuracy import ShadowAccuracy
from cedos.selector.prefetch.outlook import Outlook

_log = structlog.get_logger(__name__)


class LearntState(msgspec.Struct):
    accuracy: dict[str, list[float]] = {}
    outlook: dict[str, dict[str, Any]] = {}


def load(file: Path) -> LearntState:
    """What was kept; nothing where there is no file, or none that makes sense."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=LearntState)
    except FileNotFoundError:
        return LearntState()
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning(
            "prefetching starts anew: its file cannot be read", file=str(file), why=str(error)
        )
        return LearntState()


def save(file: Path, accuracy: ShadowAccuracy, outlook: Outlook) -> None:
    """Keeps it, whole or not at all; a disk that is full loses the news only."""
    content = msgspec.json.encode(LearntState(accuracy.to_state(), outlook.to_state()))
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        with os.fdopen(handle, "wb") as new:
            new.write(content)
        Path(temporary).replace(file)
    except OSError as error:
        _log.warning("what prefetching learned was not kept", file=str(file), why=str(error))
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()
