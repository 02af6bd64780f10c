"""One end of a measurement: a process that carries out one command a line, and answers one line each.

Sessions and plain TCP sockets are driven by the same process, one after the other, so that both have the
same interpreter, the same memory, the same cores.
"""

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from cedos import session
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets import blocking
from emu.workloads.sessions import bulk, crowd, messages, resume, trips, urgent

Command = Callable[..., Coroutine[Any, Any, dict[str, Any]]]


class Peer:
    """Carries commands out; keeps listeners and connections between them."""

    def __init__(self) -> None:
        self.key = KeyPair(os.urandom(32))
        self.listener: session.Listener | None = None
        self.raw: socket.socket | None = None
        self.blocking: blocking.socket | None = None
        self.held: list[Any] = []

    async def listen(self, address: str) -> dict[str, Any]:
        """Listens for sessions and for plain TCP."""
        self.listener = await session.listen((address, 0), key=self.key, clear=True)
        self.raw = socket.create_server((address, 0), backlog=4096)
        self.raw.setblocking(False)
        return {
            "session": self.listener.address[1],
            "raw": self.raw.getsockname()[1],
            "key": self.key.public.hex(),
        }


COMMANDS: dict[str, Command] = {
    name: getattr(module, name)
    for module in (bulk, crowd, messages, resume, trips, urgent)
    for name in module.COMMANDS
}


async def _main() -> None:
    peer = Peer()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        name = asked.pop("do")
        used_s, began_s = time.process_time(), time.perf_counter()
        try:
            if name == "listen":
                said = await peer.listen(**asked)
            else:
                said = await COMMANDS[name](peer, **asked)
        except Exception as error:  # the other process has to know, whatever it is
            said = {"error": f"{type(error).__name__}: {error}"}
        said.setdefault("cpu_s", time.process_time() - used_s)
        said.setdefault("seconds", time.perf_counter() - began_s)
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
