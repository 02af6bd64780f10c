"""Interface counters of the emulated client over time: what each network really carried."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of one interface at one monotonic instant, since it was made."""

    at_s: float
    interface: str
    received_bytes: int
    sent_bytes: int


class Sampler:
    """Samples the interfaces every `interval_s` from a thread of its own, while the block runs."""

    def __init__(
        self, client: Namespace, interfaces: Sequence[str], interval_s: float = 0.1
    ) -> None:
        self.samples: list[Sample] = []
        self._client = client
        self._interfaces = interfaces
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise EmulationError(f"counting the client's bytes failed: {self._failure}")

    def _run(self) -> None:
        counters = Path("/proc/thread-self/net/dev")
        try:
            with self._client.entered():
                next_at_s = time.monotonic()
                while not self._stop.wait(max(0.0, next_at_s - time.monotonic())):
                    self._sample(counters.read_text())
                    next_at_s += self._interval_s
                self._sample(counters.read_text())
        except (OSError, EmulationError) as error:
            self._failure = error

    def _sample(self, text: str) -> None:
        at_s = time.monotonic()
        for line in text.splitlines()[2:]:
            name, _, rest = line.partition(":")
            if (interface := name.strip()) in self._interfaces:
                fields = rest.split()
                self.samples.append(Sample(at_s, interface, int(fields[0]), int(fields[8])))
