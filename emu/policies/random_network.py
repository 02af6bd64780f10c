"""Draws the network of new connections every two seconds, whatever the daemon would choose.

What transfers then take, with what the daemon knew when they began, teaches predictors without the
bias of a policy's choices: each network gets half of everything (`cedos-emu observed`).
"""

import random
import threading

from emu.policies.base import Stage
from emu.policies.cedos import Cedos, with_settings
from emu.testbed.access import INTERFACES
from emu.testbed.phones import use_kernel_path_manager

_EVERY_S = 2.0
_WATCHING = {"mptcp": False, "rescue": False}
# The preference of a rule that leads to the main table before the daemon's rules apply.
_BEFORE_THE_DAEMONS = "300"


class RandomNetwork(Cedos):
    name = "random-network"

    def __init__(self) -> None:
        super().__init__()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, stage: Stage) -> None:
        laptop = stage.laptop
        use_kernel_path_manager(laptop)
        laptop.client.ip("rule", "add", "pref", _BEFORE_THE_DAEMONS, "iif", "lo", "lookup", "main")
        super().start(with_settings(stage, "steering", _WATCHING))
        # Of another seed, or an instant would show the same network in every run.
        draw = random.Random(f"{stage.seed}/{stage.place.name}/{stage.offset_s}")

        def prefer() -> None:
            while not self._over.is_set():
                laptop.prefer(draw.choice(sorted(INTERFACES.values())))
                self._over.wait(_EVERY_S)

        self._thread = threading.Thread(target=prefer, name="random network")
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        super().stop()


policy = RandomNetwork
