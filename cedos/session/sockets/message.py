"""What `receive` returns."""

from typing import NamedTuple

from cedos.model import Label


class Message(NamedTuple):
    """A whole message (IROB) from the peer; answers usually have its label."""

    irob: int
    label: Label
    data: bytes
