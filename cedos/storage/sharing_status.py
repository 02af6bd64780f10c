"""The file in which a side of sharing tells `cedos share` and the daemon what it does now."""

import json
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cedos.kernel import own_file

# The names of both sides' files, in the runtime directory.
STATUS_FILES: Final = {"help": "share-help.json", "request": "share-request.json"}

_OLD_S: Final = 5.0


def write_status(path: Path, facts: dict[str, Any]) -> None:
    """Write what `cedos share` shows; a runtime directory that cannot be written is no failure."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(json.dumps({"at_s": time.monotonic(), "pid": os.getpid(), **facts}))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def read_status(path: Path) -> dict[str, Any] | None:
    """Return what a living process wrote; None: none does."""
    try:
        found = json.loads(own_file.read(path))
        age_s = time.monotonic() - float(found["at_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if 0 <= age_s < _OLD_S else None


def neighbours(runtime: Path) -> dict[str, str]:
    """Return the names of the helpers that this host uses now, by its own addresses for them."""
    found = read_status(runtime / STATUS_FILES["request"]) or {}
    return {str(each["address"]): str(each["name"]) for each in found.get("helpers", ())}
