"""What is started by a `with` block."""

import pytest

from emu.testbed.services import Started


class Server(Started):
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.did: list[str] = []

    def _start(self) -> None:
        self.did.append("started")
        if self.fails:
            raise KeyboardInterrupt

    def close(self) -> None:
        self.did.append("closed")


def test_it_is_ended_with_the_block() -> None:
    with Server() as server:
        assert server.did == ["started"]
    assert server.did == ["started", "closed"]


def test_so_it_is_where_its_start_fails() -> None:
    server = Server(fails=True)
    with pytest.raises(KeyboardInterrupt):
        server.__enter__()
    assert server.did == ["started", "closed"]
