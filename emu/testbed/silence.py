"""A network of the emulated laptop that falls silent: its links stay up, nothing gets through."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from emu.testbed.access import INTERFACES
from emu.testbed.netns import Namespace
from emu.testbed.phones import Laptop


class Silence:
    """Beyond the phone, in both directions; `back_only`: nothing comes back."""

    def __init__(self, laptop: Laptop, interface: str, *, back_only: bool = False) -> None:
        kind = next(kind for kind, name in INTERFACES.items() if name == interface)
        self._isp = Namespace(laptop.instance.namespace_name(f"{kind}-isp"))
        self._rule = ("PREROUTING", *(("-i", "up0") if back_only else ()), "-j", "DROP")
        self._on = False

    def set(self, on: bool) -> None:
        if on != self._on:
            self._isp.run("iptables", "-w", "-t", "raw", "-A" if on else "-D", *self._rule)
            self._on = on

    @contextmanager
    def when_told(self) -> Iterator[Callable[[], None]]:
        """What it gives lets it begin; it is over with the block."""
        try:
            yield partial(self.set, True)
        finally:
            self.set(False)
