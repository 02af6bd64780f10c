"""How far a file is."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection


@dataclass(slots=True)
class Progress:
    """How far it is; `state` says what is waited for, empty while bytes come.

    `began_bytes`: what an earlier attempt of another program had brought.
    """

    began_bytes: int = 0
    have_bytes: int = 0
    size_bytes: int | None = None
    sessions: int = 0
    state: str = ""
    connection: "Connection | None" = None
