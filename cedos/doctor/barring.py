"""Whether barred networks have their second wall."""

import ctypes
import os
import threading
from typing import Final

from cedos.doctor.finding import Finding, limited, ok
from cedos.errors import HostError
from cedos.steer.kernel.egress_wall import EgressWall

_CLONE_NEWNET: Final = 0x40000000
_LOST: Final = (
    "who flushes the packet filter opens a network that a hard budget blocks, until it is put back"
    " (tenths of a second)"
)


def second_wall() -> Finding:
    """Tries it out in a network namespace that nobody else has and that is gone afterwards."""
    topic = "hard budgets (clsact)"
    errors: list[Exception] = []
    trying = threading.Thread(target=_try, args=(errors,))
    trying.start()
    trying.join()
    if not errors:
        return ok(topic, "available")
    (error,) = errors
    if isinstance(error, PermissionError):
        return limited(topic, "cannot be tested without root", "it is not known", "run it as root")
    return limited(topic, str(error), _LOST, "modprobe sch_ingress cls_bpf")


def _try(errors: list[Exception]) -> None:
    """For a thread of its own, as that stays in the namespace."""
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        wall = EgressWall()
        try:
            if not wall.put_up(["lo"]):
                raise HostError("the filter does not stand")
        finally:
            wall.close()
    except (OSError, HostError) as error:
        errors.append(error)
