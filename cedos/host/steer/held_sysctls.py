"""The sysctls that we hold at a value: the kernel sends no event when one is set, so they are read."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from cedos.host.steer.journal.records import Append, Record, SysctlRecord, change_sysctl
from cedos.host.steer.journal.sysctls import RETRANSMISSION, TCP_RMEM, TCP_RTO_MAX
from cedos.host.steer.kernel.interface import SteeringKernel

_log = structlog.get_logger(__name__)

# Not held: `ReceiveWindow` changes it all the time.
_OTHERS: Final = (TCP_RMEM,)
_OFTEN, _WITHIN_S = 3, 30.0


class HeldSysctls:
    """`append` is a journal's; `note` is one that remembers what it is told of."""

    def __init__(
        self,
        kernel: SteeringKernel,
        append: Append,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kernel = kernel
        self._append = append
        self._clock = clock
        self._held: dict[str, str] = {}
        self._repaired: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_OFTEN))

    def note(self, record: Record) -> None:
        """Journal a record, and hold its sysctl at the value that it is about to be given."""
        self._append(record)
        if isinstance(record, SysctlRecord) and record.key not in _OTHERS:
            self._held[record.key] = record.after

    def release(self, key: str) -> None:
        """Give the sysctl back to the host."""
        self._held.pop(key, None)

    def repaired(self) -> Sequence[str]:
        """Put back what another program has set; return what cannot be held, in words."""
        problems = []
        now_s = self._clock()
        for key, value in self._held.items():
            try:
                now = self._kernel.read_sysctl(key)
                if now is not None and now.split() != value.split():
                    self._kernel.write_sysctl(key, value)
                    self._repaired[key].append(now_s)
                    _log.warning(
                        "a sysctl was set by another program; it is put back", key=key, to=now
                    )
            except OSError as error:
                problems.append(f"{key} cannot be put back to {value}: {error.strerror}")
            times = self._repaired[key]
            if len(times) == _OFTEN and now_s - times[0] < _WITHIN_S:
                problems.append(
                    f"another program keeps setting {key}, which cedos needs to be {value}: stop it"
                )
        return problems


def bound_retransmission(kernel: SteeringKernel, append: Append) -> bool:
    """Bound the retransmission time-out of new TCP sockets; return whether it was set.

    It doubles with each retransmission, up to two minutes: after an outage of 14 s the next one may be
    12 s away. Linux 6.15 and newer can bound it, and keep their patience by more retransmissions. A
    kernel without the bound, and one in which the user has set any of these sysctls, is left alone.
    """
    usual = all(kernel.read_sysctl(key) == default for key, (default, _) in RETRANSMISSION.items())
    if not usual:
        return False
    # The bound is set last: no connection is given up early in between.
    patience = [key for key in RETRANSMISSION if key != TCP_RTO_MAX]
    for key in (*patience, TCP_RTO_MAX):
        change_sysctl(kernel, append, key, RETRANSMISSION[key][1])
    return True
