from pathlib import Path

import numpy as np

from emu.lab.runs.decisive_window import decisive_s
from emu.places import synth
from emu.places.places import load
from emu.places.traces import Trace


def test_the_window_holds_a_good_wifi_and_its_end(tmp_path: Path) -> None:
    synth.generate("static", 1, 60, tmp_path, "here")
    place = load(tmp_path)["here"]
    # A packet each millisecond for 30 s, then nothing: only the middle tells the two apart.
    vars(place.wifi)["down"] = Trace(np.append(np.arange(1, 30_000), 60_000), 60_000)
    start_s = decisive_s(place, 10.0)
    assert 24 <= start_s <= 27
    assert decisive_s(place, 600.0) == 0.0
