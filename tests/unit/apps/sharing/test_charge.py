"""The battery's charge from sysfs."""

import pytest

from cedos.apps.sharing.help_driver import Charge, read_charge

LAPTOP = {
    "type": "Battery", "status": "Discharging", "capacity": "38",
    "energy_now": "20000000", "power_now": "8000000",
}  # fmt: skip


def supply(folder, name, facts):
    (folder / name).mkdir()
    for key, value in facts.items():
        (folder / name / key).write_text(f"{value}\n")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, Charge(0.38, 9000)), ({"status": "Charging"}, None), ({"scope": "Device"}, None),
        ({"type": "Mains"}, None), ({"capacity": "much"}, None),
        ({"capacity": "104"}, Charge(1.0, 9000)), ({"power_now": "0"}, Charge(0.38)),
        ({"power_now": "x", "charge_now": "3000", "current_now": "-1500"}, Charge(0.38, 7200)),
    ],
)  # fmt: skip
def test_the_charge_of_the_hosts_battery(tmp_path, change, found):
    supply(tmp_path, "AC", {"type": "Mains", "online": "0"})
    supply(tmp_path, "BAT0", LAPTOP | change)
    assert read_charge(tmp_path) == found


def test_a_host_without_batteries(tmp_path):
    assert read_charge(tmp_path) is None
    assert read_charge(tmp_path / "none") is None
