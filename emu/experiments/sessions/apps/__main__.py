"""Runs one end of an application; see the package."""

import asyncio
import importlib
import json
import os
import sys
from typing import Any

from cedos.errors import CedosError


async def _main(role: str, name: str) -> None:
    options: dict[str, Any] = json.loads(sys.stdin.readline())
    module = importlib.import_module(f"emu.experiments.sessions.apps.{name}")
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    assert me is not None
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()  # told to go
    loop.add_reader(sys.stdin.fileno(), me.cancel)  # the parent is gone, or wants the end
    answer = await getattr(module, role)(**options)
    if answer is not None:
        print(json.dumps(answer), flush=True)


try:
    asyncio.run(_main(*sys.argv[1:3]))
except CedosError as error:
    print(json.dumps({"error": str(error)}), flush=True)
    sys.exit(1)
except (asyncio.CancelledError, KeyboardInterrupt):
    os._exit(0)  # threads that still wait for a network do not matter any more
