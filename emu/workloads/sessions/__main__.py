"""A process that is one end of a measurement: one command a line, one answer each.

Sessions and plain TCP sockets are driven by the same process, one after the other, so that both have the
same interpreter, the same memory, the same cores.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from emu.workloads.sessions import interruptions, round_trips, throughput
from emu.workloads.sessions.pair import Peer

Command = Callable[..., Coroutine[Any, Any, dict[str, Any]]]

COMMANDS: dict[str, Command] = {
    "listen": Peer.listen,
    "push": throughput.push,
    "pull": throughput.pull,
    "send_to_many": throughput.send_to_many,
    "receive_from_many": throughput.receive_from_many,
    "send_messages": throughput.send_messages,
    "receive_messages": throughput.receive_messages,
    "trickle": interruptions.trickle,
    "change_addresses": interruptions.change_addresses,
    "black_out": interruptions.black_out,
    "ask": round_trips.ask,
    "answer": round_trips.answer,
    "ask_under_load": throughput.ask_under_load,
    "answer_under_load": throughput.answer_under_load,
}


async def _main() -> None:
    peer = Peer()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        name = asked.pop("do")
        used_s, began_s = time.process_time(), time.perf_counter()
        try:
            answer = await COMMANDS[name](peer, **asked)
        except Exception as error:  # the other process has to know, whatever it is
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer.setdefault("cpu_s", time.process_time() - used_s)
        answer.setdefault("seconds", time.perf_counter() - began_s)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
