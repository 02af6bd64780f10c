"""Interface counters of the emulated client over time: what each network really carried."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emu.testbed.netns import Namespace
from emu.testbed.programs.watcher import Watcher


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of one interface at one monotonic instant, since it was made."""

    at_s: float
    interface: str
    received_bytes: int
    sent_bytes: int


class Sampler(Watcher):
    """Samples the interfaces every `interval_s` from a thread of its own, while the block runs."""

    def __init__(
        self, client: Namespace, interfaces: Sequence[str], interval_s: float = 0.1
    ) -> None:
        super().__init__(client, "counting the client's bytes")
        self.samples: list[Sample] = []
        self._interfaces = interfaces
        self._interval_s = interval_s

    def _watch(self) -> None:
        self._ready.set()
        counters = Path("/proc/thread-self/net/dev")
        next_at_s = time.monotonic()
        while not self._stop.wait(max(0.0, next_at_s - time.monotonic())):
            self._sample(counters.read_text())
            next_at_s += self._interval_s
        self._sample(counters.read_text())

    def _sample(self, text: str) -> None:
        at_s = time.monotonic()
        for line in text.splitlines()[2:]:
            name, _, rest = line.partition(":")
            if (interface := name.strip()) in self._interfaces:
                fields = rest.split()
                self.samples.append(Sample(at_s, interface, int(fields[0]), int(fields[8])))
