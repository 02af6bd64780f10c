"""The signal of a tethered Android phone, asked of the phone itself by `adb`.

Only where adb's server is running already and the phone allows it: a server started by us would run with
our key, which no phone knows.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cedos.errors import HostError
from cedos.model import Indicator, Network, NetworkKind
from cedos.monitor.providers import usb
from cedos.monitor.providers.android import parse_registry

_REGISTRY = ("shell", "dumpsys", "telephony.registry")
_EVERY_S = 2.0
_RECHECK_S = 30.0
_TIMEOUT_S = 4.0
_CONNECT_S = 0.5
_USUAL_PORT = 5037


@dataclass(slots=True)
class _Phone:
    due_s: float = float("-inf")
    known: Mapping[str, Indicator] | None = None
    task: asyncio.Task[None] | None = None
    error: str = ""


def parse_devices(text: str) -> dict[str, tuple[str, str]]:
    """USB path -> (serial number, state), from `adb devices -l`; `device` is the state of one at hand."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        path = next((word[4:] for word in words[2:] if word.startswith("usb:")), None)
        if path is not None:
            found[path] = (words[0], words[1])
    return found


def server_port() -> int:
    """Where adb's server listens on the loopback."""
    port = os.environ.get("ANDROID_ADB_SERVER_PORT", "")
    return int(port) if port.isdecimal() and 0 < int(port) < 65536 else _USUAL_PORT


async def server_runs() -> bool:
    """Whether adb's server listens: asking adb without it would start one."""
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection("127.0.0.1", server_port())
    except OSError:
        return False
    writer.close()
    return True


async def run_adb(*arguments: str, timeout_s: float = _TIMEOUT_S) -> str:
    """What adb prints. HostError: it is not installed, failed, or took too long (then it is killed)."""
    program = shutil.which("adb")
    if program is None:
        raise HostError("adb is not installed")
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdin=none, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise HostError(f"adb {arguments[-1]}: no answer within {timeout_s:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        why = errors.decode(errors="replace").strip() or f"exit {process.returncode}"
        raise HostError(f"adb {arguments[-1]}: {why}")
    return output.decode(errors="replace")


class AdbProvider:
    """A read gives a phone's last answer with its age, and asks again behind the reader's back."""

    name = "Android phone (adb)"

    def __init__(
        self, sysfs: Path = usb.SYSFS, *, every_s: float = _EVERY_S, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._sysfs = sysfs
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._phones: dict[int, _Phone] = {}

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        """The phone's last answer; empty for what is no phone. HostError: the last question failed."""
        if network.kind is not NetworkKind.CELLULAR:
            return {}
        phone = self._phones.setdefault(network.index, _Phone())
        if phone.error:
            error, phone.error = phone.error, ""
            raise HostError(error)
        if now_s >= phone.due_s and (phone.task is None or phone.task.done()):
            phone.due_s = now_s + _RECHECK_S
            phone.task = asyncio.create_task(self._ask(network, phone, now_s), name="adb")
        return phone.known or {}

    async def _ask(self, network: Network, phone: _Phone, now_s: float) -> None:
        path = usb.usb_path(network, self._sysfs)
        if path is None or shutil.which("adb") is None or not await server_runs():
            phone.known = None
            return
        try:
            devices = parse_devices(await run_adb("devices", "-l", timeout_s=self._timeout_s))
            serial, state = devices.get(path, ("", "absent"))
            if state != "device":  # absent: no debugging; unauthorized: `cedos doctor` tells
                phone.known = None
                return
            registry = await run_adb("-s", serial, *_REGISTRY, timeout_s=self._timeout_s)
        except HostError as error:
            phone.known, phone.error = None, str(error)
            return
        # Measured when it was asked, or later: better too old than too young.
        values = parse_registry(registry)
        phone.known = {name: Indicator(value, now_s) for name, value in values.items()}
        phone.due_s = now_s + self._every_s

    async def close(self) -> None:
        tasks = {phone.task for phone in self._phones.values() if phone.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
