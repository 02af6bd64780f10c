"""The signal of a tethered Android phone, asked of the phone itself by `adb`.

Only where adb's server is running already and the phone allows it: a server started by us would run with
our key, which no phone knows.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cedos.errors import HostError
from cedos.host.monitor.providers import usb
from cedos.model import Indicator, Network, NetworkKind

_UNKNOWN = 2147483647
# No pattern goes over a line twice: a local user may answer in place of adb's server.
_PHONE = re.compile(r"^[ \t]*(?:mPhoneId=\d+|Phone Id=\d+)", re.MULTILINE)
_CURRENT = re.compile(r"^[ \t]*mSignalStrength=SignalStrength:(.*)$", re.MULTILINE)
_CONNECTED = re.compile(r"^[ \t]*mDataConnectionState=2[ \t\r]*$", re.MULTILINE)
_FIELD = re.compile(r"\b(\w{1,64})\s*=\s*(-?\d{1,11})\b")
_SECTION = r"m{0}=CellSignalStrength{0}:\s*\{{?([^,}}]*)"
_NEWER = ("parametersUseForLevel", "cqiTableIndex")


def parse_registry(text: str) -> dict[str, float]:
    """Return the signal that `dumpsys telephony.registry` shows of the mobile data.

    The keys are `rsrp_dbm`, `rsrq_db`, `sinr_db`, `cqi`, `rssi_dbm` and `dbm`, which is Android's own
    figure for the technology in use: RSRP of 5G or LTE, RSCP of UMTS, RSSI of GSM. Of two SIM cards the
    one with a data connection counts, else the first that has a signal. 5G is preferred: where it is
    there, it carries the data.

    Two formats are in use (the fields of AOSP's `CellSignalStrengthLte` and `...Nr`); that of Android 9
    and older is not read:

    - Android 10: `mLte=CellSignalStrengthLte: rssi=-63 rsrp=-92 rsrq=-9 rssnr=80 cqi=12 ...`, the
      SNR still in tenths;
    - from Android 11 on the same with `parametersUseForLevel`, later `cqiTableIndex`, the SNR in dB; 5G
      as `mNr=CellSignalStrengthNr:{ csiRsrp = ... ssRsrp = -95 ssRsrq = -11 ssSinr = 20 ... }`.

    2147483647 means unknown.
    """
    phones = _phones(text)
    for phone in sorted(phones, key=lambda phone: _CONNECTED.search(phone) is None):
        if (line := _CURRENT.search(phone)) is not None and (values := _signal(line[1])):
            return values
    return {}


def _phones(text: str) -> list[str]:
    starts = [match.start() for match in _PHONE.finditer(text)]
    if not starts:
        return [text]
    return [text[begin:end] for begin, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _signal(line: str) -> dict[str, float]:
    nr = _fields(line, "Nr")
    values = _renamed(nr, {"ssRsrp": "rsrp_dbm", "ssRsrq": "rsrq_db", "ssSinr": "sinr_db"})
    if "rsrp_dbm" in values:
        return values | {"dbm": values["rsrp_dbm"]}
    lte = _fields(line, "Lte")
    names = {"rsrp": "rsrp_dbm", "rsrq": "rsrq_db", "rssnr": "sinr_db", "cqi": "cqi"}
    values = _renamed(lte, names | {"rssi": "rssi_dbm"})
    if "rsrp_dbm" in values:
        if "sinr_db" in values and not any(name in lte for name in _NEWER):
            values["sinr_db"] /= 10.0
        if values.get("rssi_dbm", -1.0) >= 0:  # some phones give the level here, 99 for unknown
            del values["rssi_dbm"]
        return values | {"dbm": values["rsrp_dbm"]}
    for technology, name in (("Wcdma", "rscp"), ("Wcdma", "ss"), ("Gsm", "rssi")):
        found = _renamed(_fields(line, technology), {name: "dbm"})
        if found.get("dbm", 0.0) < 0:
            return found
    return {}


def _fields(line: str, technology: str) -> dict[str, int]:
    section = re.search(_SECTION.format(technology), line)
    if section is None:
        return {}
    return {name: int(value) for name, value in _FIELD.findall(section[1])}


def _renamed(fields: Mapping[str, int], names: Mapping[str, str]) -> dict[str, float]:
    return {
        ours: float(fields[theirs])
        for theirs, ours in names.items()
        if fields.get(theirs, _UNKNOWN) != _UNKNOWN
    }


_REGISTRY = ("shell", "dumpsys", "telephony.registry")
_EVERY_S = 2.0
_RECHECK_S = 30.0
_TIMEOUT_S = 4.0
_CONNECT_S = 0.5
_MOST_BYTES = 4 << 20
_USUAL_PORT = 5037


@dataclass(slots=True)
class _Phone:
    due_s: float = float("-inf")
    known: Mapping[str, Indicator] | None = None
    task: asyncio.Task[None] | None = None
    error: str = ""


def parse_devices(text: str) -> dict[str, tuple[str, str]]:
    """Return USB path -> (serial number, state) from `adb devices -l`; a usable phone is a `device`."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        path = next((word[4:] for word in words[2:] if word.startswith("usb:")), None)
        if path is not None:
            found[path] = (words[0], words[1])
    return found


def server_port() -> int:
    """Return where adb's server listens on the loopback."""
    port = os.environ.get("ANDROID_ADB_SERVER_PORT", "")
    return int(port) if port.isdecimal() and 0 < int(port) < 65536 else _USUAL_PORT


async def server_runs() -> bool:
    """Return whether adb's server listens: asking adb without it would start one."""
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection("127.0.0.1", server_port())
    except OSError:
        return False
    writer.close()
    return True


async def run_adb(*arguments: str, timeout_s: float = _TIMEOUT_S) -> str:
    """Return adb's output. HostError: not installed, failed, too slow or too long (then killed)."""
    program = shutil.which("adb")
    if program is None:
        raise HostError("adb is not installed")
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    # One pipe for both: what adb says of its server is no line that a parser takes.
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdin=none, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    output = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while block := await process.stdout.read(_MOST_BYTES):
                output += block
                if len(output) > _MOST_BYTES:
                    raise HostError(f"adb {arguments[-1]}: more than {_MOST_BYTES} bytes came")
            await process.wait()
    except TimeoutError as error:
        raise HostError(f"adb {arguments[-1]}: no answer within {timeout_s:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        why = output[:300].decode(errors="replace").strip() or f"exit {process.returncode}"
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
        """Return the phone's last answer; empty if it is no phone. HostError: the question failed."""
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
