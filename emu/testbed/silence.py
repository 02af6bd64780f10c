"""A network of the emulated laptop that falls silent: its links stay up, nothing gets through."""

from cedos.model import NetworkKind
from emu.testbed.access import INTERFACES
from emu.testbed.netns import Namespace
from emu.testbed.phones import Laptop

_RULE = ("PREROUTING", "-j", "DROP")


class Silence:
    """Beyond the phone, in both directions."""

    def __init__(self, laptop: Laptop, interface: str) -> None:
        kind = next(kind for kind, name in INTERFACES.items() if name == interface)
        name = "wifi" if kind is NetworkKind.WIFI else "cellular"
        self._isp = Namespace(laptop.instance.namespace_name(f"{name}-isp"))
        self._on = False

    def set(self, on: bool) -> None:
        if on != self._on:
            self._isp.run("iptables", "-w", "-t", "raw", "-A" if on else "-D", *_RULE)
            self._on = on
