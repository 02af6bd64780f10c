"""Signal reports of Android phones: texts in the forms of several versions."""

import os
import stat
from pathlib import Path

import anyio
import pytest

from cedos.errors import HostError
from cedos.host.monitor.providers import adb
from cedos.host.monitor.providers.adb import parse_registry
from cedos.host.monitor.providers.usb import usb_path
from cedos.model import Network, NetworkKind

pytestmark = pytest.mark.anyio
NONE = 2147483647
EMPTY = (
    f"mCdma=CellSignalStrengthCdma: cdmaDbm={NONE} cdmaEcio={NONE} level=0,"
    f"mGsm=CellSignalStrengthGsm: rssi={NONE} ber={NONE} mTa={NONE} mLevel=0,"
    f"mWcdma=CellSignalStrengthWcdma: ss={NONE} ber={NONE} rscp={NONE} ecno={NONE} level=0"
)
NO_NR = (
    f"mNr=CellSignalStrengthNr:{{ csiRsrp = {NONE} csiRsrq = {NONE} csiCqiReport = [] "
    f"ssRsrp = {NONE} ssRsrq = {NONE} ssSinr = {NONE} level = 0 parametersUseForLevel = 0 }}"
)


def registry(*phones: str) -> str:
    blocks = [
        f"  Phone Id={number}\n    mCallState=0\n    mSignalStrength=SignalStrength:{phone}\n"
        for number, phone in enumerate(phones)
    ]
    return "last known state:\n" + "".join(blocks) + "local logs:\n  mSignalStrength=x\n"


def newest(lte: str, nr: str = NO_NR, primary: str = "Lte") -> str:
    parts = f"{EMPTY},mLte=CellSignalStrengthLte: {lte},{nr}"
    return f"{{{parts},primary=CellSignalStrength{primary}}}\n    mDataConnectionState=2"


def test_android_10_gives_the_snr_in_tenths() -> None:
    lte = f"rssi=-71 rsrp=-95 rsrq=-8 rssnr=48 cqi=12 ta={NONE} level=4 oplevel=4"
    nr = f"mNr=CellSignalStrengthNr:{{ ssRsrp = {NONE} ssRsrq = {NONE} ssSinr = {NONE} level = 0 }}"
    found = parse_registry(registry(newest(lte, nr)))
    assert (found["sinr_db"], found["cqi"], found["rssi_dbm"]) == (4.8, 12.0, -71.0)
    lte = "mLte=CellSignalStrengthLte: rssi=99 rsrp=-85 rsrq=-10 rssnr=150 cqi=15"
    found = parse_registry(registry(f" mCdma=CellSignalStrengthCdma: {lte}"))
    assert found == {"rsrp_dbm": -85, "rsrq_db": -10, "sinr_db": 15.0, "cqi": 15, "dbm": -85}


def test_later_ones_give_it_in_db() -> None:
    tail = f"cqi=9 ta={NONE} level=3 parametersUseForLevel=0"
    eleven = parse_registry(registry(newest(f"rssi=-65 rsrp=-101 rsrq=-12 rssnr=13 {tail}")))
    assert (eleven["rsrp_dbm"], eleven["sinr_db"], eleven["cqi"]) == (-101.0, 13.0, 9.0)
    later = f"rssi={NONE} rsrp=-101 rsrq=-12 rssnr=-3 cqiTableIndex={NONE} {tail}"
    found = parse_registry(registry(newest(later)))
    assert found["sinr_db"] == -3.0
    assert "rssi_dbm" not in found


def test_5g_comes_before_lte() -> None:
    nr = (
        f"mNr=CellSignalStrengthNr:{{ csiRsrp = {NONE} csiCqiTableIndex = {NONE} csiCqiReport = [] "
        "ssRsrp = -95 ssRsrq = -11 ssSinr = 20 level = 3 parametersUseForLevel = 0 }"
    )
    text = registry(newest("rssi=-65 rsrp=-101 rsrq=-12 rssnr=13 cqi=9 level=3", nr, "Nr"))
    assert parse_registry(text) == {"rsrp_dbm": -95, "rsrq_db": -11, "sinr_db": 20, "dbm": -95}


def test_umts_has_a_level_only() -> None:
    umts = EMPTY.replace(f"rscp={NONE}", "rscp=-97")
    lte = f"rssi={NONE} rsrp={NONE} rsrq={NONE} rssnr={NONE} cqi={NONE} level=0"
    text = f"{{{umts},mLte=CellSignalStrengthLte: {lte},{NO_NR},primary=CellSignalStrengthWcdma}}"
    assert parse_registry(registry(text)) == {"dbm": -97.0}


def test_of_two_cards_the_connected_one_counts() -> None:
    idle = newest("rssi=-60 rsrp=-80 rsrq=-8 rssnr=20 cqi=9 level=4").replace("State=2", "State=0")
    used = newest("rssi=-60 rsrp=-110 rsrq=-8 rssnr=20 cqi=9 level=4")
    assert parse_registry(registry(idle, used))["rsrp_dbm"] == -110.0
    assert parse_registry(registry(idle, idle))["rsrp_dbm"] == -80.0


PHONE = Network("phone", "usb0", 7, NetworkKind.CELLULAR, True)
DEVICES = (
    "List of devices attached\n"
    "R58M1  device usb:1-3.2 product:a model:b device:c transport_id:1\n"
    "R58M2  unauthorized usb:1-4 transport_id:2\n"
    "emulator-5554 offline\n\n"
)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A phone plugged in at 1-3.2."""
    root = tmp_path / "net"
    plugged = tmp_path / "devices/pci0000:00/usb1/1-3/1-3.2/1-3.2:1.0"
    (root / "usb0").mkdir(parents=True)
    plugged.mkdir(parents=True)
    (root / "usb0/ifindex").write_text("7\n")
    (root / "usb0/device").symlink_to(plugged)
    return root


def test_where_an_interface_is_plugged_in(sysfs: Path) -> None:
    assert usb_path(PHONE, sysfs) == "1-3.2"
    assert usb_path(Network("x", "usb0", 8, NetworkKind.CELLULAR, True), sysfs) is None
    assert usb_path(Network("x", "usb1", 7, NetworkKind.CELLULAR, True), sysfs) is None


class FakeAdb:
    """An adb in PATH, and something that listens where its server would."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "adb"
        self.output = folder / "output"
        self.calls = folder / "calls"

    def does(self, script: str) -> None:
        self.program.write_text(f'#!/bin/sh\necho "$@" >> {self.calls}\n{script}\n')
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)

    def answers(self, text: str) -> None:
        self.output.write_text(text)
        devices = DEVICES.replace("\n", "\\n")
        self.does(f"case $1 in devices) printf '{devices}';; *) cat {self.output};; esac")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeAdb:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return FakeAdb(tmp_path / "bin")


async def asked(provider: adb.AdbProvider, now_s: float) -> dict[str, float]:
    """Return the provider's indicators once the phone has answered."""
    await provider.read(PHONE, now_s)
    task = provider._phones[PHONE.index].task
    assert task is not None
    await task
    return {name: i.value for name, i in (await provider.read(PHONE, now_s)).items()}


async def test_a_phone_is_asked_through_its_own_cable(
    fake: FakeAdb, sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers(registry(newest("rssi=-65 rsrp=-101 rsrq=-12 rssnr=13 cqi=9 cqiTableIndex=1")))
    provider = adb.AdbProvider(sysfs)
    # No server: nothing is ever started.
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "9")
    assert await asked(provider, 1.0) == {}
    assert not fake.calls.exists()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        assert await asked(provider, 20.0) == {}  # asked again after half a minute
        assert (await asked(provider, 40.0))["rsrp_dbm"] == -101.0
        assert fake.calls.read_text().splitlines() == [
            "devices -l",
            "-s R58M1 shell dumpsys telephony.registry",
        ]
        assert await provider.read(Network("w", "usb0", 7, NetworkKind.WIFI, False), 41.0) == {}
    await provider.close()


async def test_an_adb_that_hangs_or_fails_is_a_problem_in_words(
    fake: FakeAdb, sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = adb.AdbProvider(sysfs, timeout_s=0.3)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        fake.does("exec sleep 60")
        with pytest.raises(HostError, match=r"no answer within 0.3 s"):
            await asked(provider, 1.0)
        fake.does("echo 'protocol fault' >&2; exit 1")
        with pytest.raises(HostError, match="protocol fault"):
            await asked(provider, 40.0)
        fake.does("exec yes from another user who listens on the port")
        with pytest.raises(HostError, match="more than 4194304 bytes came"):
            await asked(adb.AdbProvider(sysfs), 60.0)
        fake.answers("")
        assert await asked(provider, 80.0) == {}
    await provider.close()
