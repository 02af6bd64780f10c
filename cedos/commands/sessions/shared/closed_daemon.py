"""A daemon that this user may not ask."""

from pathlib import Path
from typing import Final

from cedos.api.client import ControlClient
from cedos.commands.console.program import say
from cedos.config.directories import directories
from cedos.errors import CedosError, PrivilegeError

_TIMEOUT_S: Final = 1.0


def say_if_closed(program: str, socket: Path | None = None) -> None:
    """Says it in one line: else its rules and choices would be missed in silence."""
    try:
        ControlClient(socket or directories().socket, _TIMEOUT_S).networks()
    except PrivilegeError as error:
        say(
            program,
            CedosError(f"if a daemon runs, its rules and choices are not followed: {error}"),
        )
    except CedosError:
        return  # none runs: nothing is missed
