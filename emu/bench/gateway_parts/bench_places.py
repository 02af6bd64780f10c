"""The places that benches replay."""

import os
from pathlib import Path

from emu.places.places import Places, default_directory, load


def bench_places() -> Places:
    """Return the collection that `CEDOS_BENCH_PLACES` names, else the default one. PlaceError."""
    named = os.environ.get("CEDOS_BENCH_PLACES")
    return load(Path(named) if named else default_directory())
