"""What the doctor says of modems, phones, portals and the screen."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from cedos.config import Config, ProbesConfig
from cedos.doctor import radios
from cedos.doctor.finding import FindingState
from cedos.monitor.bus import BusError, SystemBus

pytestmark = pytest.mark.anyio
NM, MM, LOGIND = (
    "org.freedesktop.NetworkManager",
    "org.freedesktop.ModemManager1",
    "org.freedesktop.login1",
)


class Played(SystemBus):
    """Answers by member or, for properties, by interface."""

    def __init__(self, **answers: Any) -> None:
        super().__init__("unix:path=/nowhere")
        self._answers = answers

    async def call(
        self, service: str, path: str, interface: str, member: str, *_: Any
    ) -> list[Any]:
        asked = _[1][0].rpartition(".")[2] if member == "GetAll" else member
        if asked not in self._answers:
            raise BusError(f"{service} {member}: no answer within 2 s")
        return [self._answers[asked]]


async def test_network_manager() -> None:
    assert (await radios.network_manager(Played(), set())).found == "not used"
    silent = await radios.network_manager(Played(), {NM})
    assert (silent.state, "does not answer" in silent.found) == (FindingState.LIMITED, True)
    for checks, words in ((True, "running, checks"), (False, "running, does not check")):
        bus = Played(NetworkManager={"ConnectivityCheckEnabled": checks})
        finding = await radios.network_manager(bus, {NM})
        assert finding.found == f"{words} for portals"


async def test_modems() -> None:
    assert (await radios.modems(Played(), set())).state is FindingState.LIMITED
    assert "does not answer" in (await radios.modems(Played(), {MM})).found
    nothing = await radios.modems(Played(GetManagedObjects={}), {MM})
    assert nothing.found == "running, without a modem"
    described = {f"{MM}.Modem": {"Ports": [["wwan0", 2]]}}
    some = await radios.modems(Played(GetManagedObjects={"/m": described}), {MM})
    assert some.found == "running, with a modem behind wwan0"


async def test_the_screen() -> None:
    assert (await radios.user_presence(Played(), set())).found == "logind is not running"
    assert "nobody is logged in" in (await radios.user_presence(Played(), {LOGIND})).found
    seat = {"ActiveSession": ["1", "/s"]}
    for idle, words in ((False, "somebody is there"), (True, "idle or locked")):
        finding = await radios.user_presence(
            Played(Seat=seat, Session={"IdleHint": idle}), {LOGIND}
        )
        assert (finding.state, finding.found) == (FindingState.OK, words)


async def test_phones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (await radios.phones()).found == "not installed"
    program = tmp_path / "adb"

    def lists(devices: str) -> None:
        program.write_text(f"#!/bin/sh\nprintf '{devices}'\n")
        program.chmod(0o755)

    lists("")
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "9")
    off = await radios.phones()
    assert "the adb server does not run" in off.found
    assert "adb start-server" in off.remedy
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        assert (await radios.phones()).found == "no phone plugged in"
        lists("R58 unauthorized usb:1-4\\n")
        refused = await radios.phones()
        assert (refused.state, refused.found) == (
            FindingState.LIMITED,
            "R58 does not allow USB debugging",
        )
        lists("R58 device usb:1-4\\n")
        assert (await radios.phones()).found == "R58 can be asked"
        program.write_text("#!/bin/sh\nexit 1\n")
        assert (await radios.phones()).state is FindingState.LIMITED


def test_portals() -> None:
    assert radios.portals(Config()).state is FindingState.OK
    off = radios.portals(Config(probes=ProbesConfig(portal_url="")))
    assert (off.state, off.remedy) == (FindingState.LIMITED, "set probes.portal_url")
    assert radios.portals(Config(probes=ProbesConfig(enabled=False))).found == "probes are off"
