"""Python reads this at its start where `PYTHONPATH` has this folder: SIGUSR2 has the objects counted.

A copy of the process counts (fork), so that counting costs the process itself no memory: all objects
that are reachable from what the collector knows, by type, with their sizes.
"""

import os
import signal
import sys


def _count(signal_number: int, frame: object) -> None:
    file = f"{os.environ['CEDOS_OBJECTS']}/{os.getpid()}"
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:  # nobody has to wait for this one
            os.nice(19)
            _write(file)
    finally:
        os._exit(0)


def _write(file: str) -> None:
    import ctypes  # noqa: PLC0415
    import gc  # noqa: PLC0415
    import json  # noqa: PLC0415

    class Malloc(ctypes.Structure):
        """`struct mallinfo2` of malloc.h."""

        _fields_ = [
            (name, ctypes.c_size_t)
            for name in (
                *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
                *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
            )
        ]

    asked = ctypes.CDLL(None).mallinfo2
    asked.restype = Malloc
    malloc = asked()
    blocks = sys.getallocatedblocks()
    gc.unfreeze()
    seen: set[int] = set()
    types: dict[str, list[int]] = {}
    waiting = gc.get_objects()
    own = {id(waiting), id(seen), id(types)}
    while waiting:
        one = waiting.pop()
        if id(one) in seen or id(one) in own:
            continue
        seen.add(id(one))
        counted = types.setdefault(f"{type(one).__module__}.{type(one).__qualname__}", [0, 0])
        counted[0] += 1
        counted[1] += sys.getsizeof(one, 0)
        waiting += gc.get_referents(one)
    found = {
        "types": types,
        "blocks": blocks,
        "malloc_used": malloc.uordblks,
        "malloc_free": malloc.fordblks,
        "malloc_mapped": malloc.hblkhd,
    }
    with open(f"{file}.part", "w") as out:  # noqa: PTH123
        json.dump(found, out)
    os.replace(f"{file}.part", f"{file}.json")  # noqa: PTH105


if "CEDOS_OBJECTS" in os.environ and "cedos" in sys.orig_argv:
    signal.signal(signal.SIGUSR2, _count)
