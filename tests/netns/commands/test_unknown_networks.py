"""Names of networks that are not there: told, until a network of that name comes."""

import signal
from collections.abc import Callable

from kit.laptop import Installed, Tethered

CONFIG = """
[networks.usb0]
name = "phone"
[budgets.plan]
data = "4GB"
until = "2036-12-01"
networks = ["phone", "lte1"]
"""


def test_names_that_no_network_has_are_told(
    tethered: Tethered, install: Callable[..., Installed]
) -> None:
    cedos = install(tethered.laptop, CONFIG)
    config = str(cedos.folder / "cedos.toml")
    misspelt = (
        'the budget "plan" names the network lte1, which is not there now; did you mean lte0?'
    )
    unplugged = (
        "[networks.usb0] names the interface usb0, which is not there now; there are lte0, wlan0"
    )
    examined = cedos.run("doctor", "--config", config)
    assert misspelt in examined.stdout
    assert unplugged in examined.stdout
    with cedos.up("--dry-run") as process:
        problems = cedos.client.status().problems
        assert misspelt in problems
        assert unplugged in problems
        tethered.plug("usb0", 45)
        while len(cedos.client.networks()) < 3:
            pass
        assert not any("usb0" in problem for problem in cedos.client.status().problems)
        # What was there once is not misspelt.
        tethered.laptop.ip("link", "delete", "usb0")
        while len(cedos.client.networks()) > 2:
            pass
        problems = cedos.client.status().problems
        assert not any("usb0" in problem for problem in problems)
        assert misspelt in problems
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert errors.count(misspelt) == 1
    assert unplugged in errors
