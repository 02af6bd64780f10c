"""Leases of phones that announce themselves as metered, and of others."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.kernel.dhcp_leases import announced_metered

NETWORKD = """# This is private data. Do not parse.
ADDRESS=192.168.43.77
NETMASK=255.255.255.0
ROUTER=192.168.43.1
VENDOR_SPECIFIC=414e44524f49445f4d455445524544
"""
DHCLIENT = """lease {
  interface "wlan0";
  fixed-address 192.168.43.77;
  option vendor-encapsulated-options 41:4e:44:52:4f:49:44:5f:4d:45:54:45:52:45:44;
  expire 1 2026/11/23 18:00:00;
}
lease {
  interface "eth0";
  fixed-address 10.0.0.5;
}
"""


def announced(folder: Path, name: str, index: int = 7) -> bool:
    return announced_metered(name, index, networkd=folder, dhclient=folder)


def test_systemd_networkd(tmp_path: Path) -> None:
    assert not announced(tmp_path, "wlan0")
    (tmp_path / "7").write_text(NETWORKD)
    assert announced(tmp_path, "wlan0", 7)
    assert not announced(tmp_path, "wlan0", 8)
    (tmp_path / "7").write_text(NETWORKD.replace("414e", "ffff"))
    assert not announced(tmp_path, "wlan0", 7)


def test_dhclient_and_its_latest_lease_of_an_interface(tmp_path: Path) -> None:
    file = tmp_path / "dhclient.wlan0.leases"
    file.write_text(DHCLIENT)
    assert announced(tmp_path, "wlan0")
    assert not announced(tmp_path, "eth0")
    assert not announced(tmp_path, "wlan")
    file.write_text(DHCLIENT + 'lease {\n  interface "wlan0";\n  fixed-address 10.1.1.2;\n}\n')
    assert not announced(tmp_path, "wlan0")
    file.write_text(
        DHCLIENT.replace("41:4e:44:52:4f:49:44:5f:4d:45:54:45:52:45:44", '"ANDROID_METERED"')
    )
    assert announced(tmp_path, "wlan0")


@settings(max_examples=200)
@given(content=st.binary(max_size=300), known=st.booleans())
def test_any_bytes_are_answered(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, known: bool
) -> None:
    folder = tmp_path_factory.mktemp("leases")
    (folder / "7").write_bytes((b"VENDOR_SPECIFIC=" if known else b"") + content)
    (folder / "dhclient.leases").write_bytes(
        b'lease {\n  interface "wlan0";\n  option vendor-encapsulated-options '
        + content
        + b";\n}\n"
    )
    assert announced(folder, "wlan0") in (True, False)
