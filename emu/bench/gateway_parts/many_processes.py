"""64,000 live connections on a gateway of four processes: their memory, and an answer then.

`python -m emu.bench.gateway_parts.many_processes` measures; over loopback, sixteen clients in four
processes, each of which has an origin of its own that sends back what comes. Each connection has carried
something.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from cedos.errors import EmulationError
from cedos.kernel.process import memory, open_files
from cedos.proxy.gateway.invited_clients import InvitedClients
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.streams.stream import ProxiedStream
from cedos.session import keys
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets.sibling_processes import process_of
from emu.bench.gateway_parts.flows import Echo, answered_s, processor_s, rss_mb

_HOST, _PORT = "127.0.0.1", 17_920
_PROCESSES, _CLIENTS = 4, 4
_EACH: Final = 16_000
_AT_ONCE: Final = 50
_REST_S: Final = 10.0
_ASKED: Final = 100


def measure() -> dict[str, float]:
    """`flows`, `flows_rss_mb` of all the gateway's processes; answers after ten quiet seconds.

    EmulationError: it does not take them.
    """
    with tempfile.TemporaryDirectory() as text, contextlib.ExitStack() as stack:
        folder = Path(text)
        secrets = _invited(folder)
        gateway = stack.enter_context(_gateway(folder))
        stack.callback(gateway.terminate)
        clients = []
        for number in range(_PROCESSES):
            client = stack.enter_context(
                _begun("-m", "emu.bench.gateway_parts.many_processes", str(number))
            )
            stack.callback(client.kill)
            assert client.stdin is not None
            me = keys.own(folder / "key").public.hex()
            client.stdin.write(json.dumps([me, *secrets[number]]) + "\n")
            client.stdin.flush()
            clients.append(client)
        flows = sum(int(_line(client)) for client in clients)
        pids = _children(gateway.pid)
        began_s = sum(map(processor_s, pids))
        time.sleep(_REST_S)
        rested_s = sum(map(processor_s, pids)) - began_s
        answers_s: list[float] = []
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("\n")
            client.stdin.flush()
            answers_s += json.loads(_line(client))
        return {
            "flows": flows,
            "flows_processes": len(pids),
            "flows_rss_mb": sum(map(rss_mb, pids)),
            "flows_most_rss_mb": max(map(rss_mb, pids)),
            "flows_idle_cpu_share": rested_s / _REST_S,
            "flows_answer_median_ms": 1e3 * statistics.median(answers_s),
            "flows_answer_p95_ms": 1e3 * statistics.quantiles(answers_s, n=20)[-1],
        }


def _invited(folder: Path) -> list[list[str]]:
    """Secrets of so many clients of each process."""
    invited, count = InvitedClients(folder / "clients"), 0
    secrets: list[list[str]] = [[] for _ in range(_PROCESSES)]
    while min(map(len, secrets)) < _CLIENTS:
        count += 1
        secret = invited.invite(f"client-{count}")
        mine = secrets[process_of(KeyPair(secret).public, _PROCESSES)]
        if len(mine) < _CLIENTS:
            mine.append(secret.hex())
        else:
            invited.revoke(f"client-{count}")
    return secrets


def _begun(*words: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        text=True,
        env=os.environ | environment,
    )


def _gateway(folder: Path) -> "subprocess.Popen[str]":
    process = _begun(
        *("-m", "cedos", "gateway", "--processes", str(_PROCESSES), "--listen", f"{_HOST}:{_PORT}"),
        *("--allow-local", "--own-key", str(folder / "key"), "--clients", str(folder / "clients")),
        *("--max-connections", "100000", "--max-per-client", "100000", "--no-cache"),
        *("--log-level", "warning"),
        HOME=str(folder),
        XDG_CONFIG_HOME=str(folder),
    )
    deadline_s = time.monotonic() + 60
    while len(_children(process.pid)) < _PROCESSES or not (folder / "key").exists():
        if time.monotonic() > deadline_s or process.poll() is not None:
            raise EmulationError("the gateway to be measured does not begin")
        time.sleep(0.1)
    return process


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise EmulationError("a client of the gateway to be measured has ended")
    return line


async def _client(number: int) -> None:
    open_files.allow()
    me, *secrets = json.loads(sys.stdin.readline())
    origin = await asyncio.get_running_loop().create_server(
        Echo, _HOST, _PORT + 1 + number, backlog=4_096
    )
    links = [
        GatewayLink(
            JoinedGateway(_HOST, _PORT, bytes.fromhex(me), KeyPair(bytes.fromhex(secret))),
            patience_s=30.0,
        )
        for secret in secrets
    ]
    streams: list[ProxiedStream] = []

    async def one(link: GatewayLink) -> None:
        stream = await link.open(_HOST, _PORT + 1 + number)
        await answered_s(stream)
        streams.append(stream)

    while len(streams) < _EACH:
        await asyncio.gather(*(one(link) for link in links for _ in range(_AT_ONCE)))
    print(len(streams), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    assert origin.is_serving()
    print(json.dumps([await answered_s(each) for each in streams[:: _EACH // _ASKED]]), flush=True)
    await asyncio.sleep(3600)


if __name__ == "__main__":
    memory.one_arena()
    if len(sys.argv) > 1:
        asyncio.run(_client(int(sys.argv[1])))
    else:
        print(json.dumps(measure(), indent=1))
