"""The places that benches replay."""

import os
from pathlib import Path

from emu.places.places import Places, default_directory, load


def bench_places() -> Places:
    """Those of `CEDOS_BENCH_PLACES`, else the real ones beside this repository, else ours. PlaceError."""
    named = os.environ.get("CEDOS_BENCH_PLACES")
    return load(Path(named) if named else default_directory())
