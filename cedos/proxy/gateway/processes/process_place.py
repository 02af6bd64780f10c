"""What one process of a gateway is given by the one that began it, and gives to its own successor."""

import os
from typing import Final, Self

import msgspec
from msgspec import Struct

_VARIABLE: Final = "CEDOS_GATEWAY_PROCESS"


class ProcessPlace(Struct):
    """`number` of `parent`'s processes, and the numbers of its open files.

    `listening`: one socket for all; `ways` to each process, and `mine`: see `SiblingProcesses`.
    """

    number: int
    parent: int
    listening: int
    ways: list[int]
    mine: int
    board: int

    @classmethod
    def received(cls) -> Self | None:
        """None: this process is not one of several. ValueError: it cannot be read."""
        text = os.environ.get(_VARIABLE)
        return None if text is None else msgspec.json.decode(text, type=cls)

    def environment(self) -> dict[str, str]:
        return {_VARIABLE: msgspec.json.encode(self).decode()}

    @property
    def files(self) -> list[int]:
        return [self.listening, *self.ways, self.mine, self.board]
