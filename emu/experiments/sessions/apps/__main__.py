"""The process at one end of an application; see the package."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from cedos.errors import CedosError
from emu.experiments.sessions.apps import applications

_Run = Callable[..., Awaitable[dict[str, Any] | None]]

_SERVERS: Mapping[str, _Run] = {
    "files": applications.serve_answers,
    "mail": applications.serve_answers,
    "sensing": applications.serve_answers,
    "fetch": applications.serve_file,
    "stream": applications.serve_stream,
    "bundled": applications.serve_bundles,
}
_CLIENTS: Mapping[str, _Run] = {
    "files": applications.files,
    "mail": applications.mail,
    "sensing": applications.sensing,
    "fetch": applications.fetch,
    "stream": applications.read_stream,
    "bundled": applications.fetch_bundles,
}
_ROLES = {"server": _SERVERS, "client": _CLIENTS}


async def _main(role: str, name: str) -> None:
    options: dict[str, Any] = json.loads(sys.stdin.readline())
    run = _ROLES[role][name]
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    assert me is not None
    print(json.dumps({"ready": True}), flush=True)
    # The parent says when to begin.
    sys.stdin.readline()
    loop.add_reader(sys.stdin.fileno(), me.cancel)  # the parent is gone, or wants the end
    answer = await run(**options)
    if answer is not None:
        print(json.dumps(answer), flush=True)


try:
    asyncio.run(_main(*sys.argv[1:3]))
except CedosError as error:
    print(json.dumps({"error": str(error)}), flush=True)
    sys.exit(1)
except (asyncio.CancelledError, KeyboardInterrupt):
    os._exit(0)  # threads that still wait for a network do not matter any more
