"""The line that says how far a transfer is."""

import io

import pytest

from cedos.apps.files.server_link import Progress
from cedos.commands.console.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Paths:
    def __init__(self, *networks):
        self.networks = networks

    def paths(self):
        return [type("Path", (), {"network": n, "stalled": s}) for n, s in self.networks]


def test_it_says_how_far_how_fast_how_long_and_over_which_networks():
    progress = Progress(0, 0, 100_000_000)
    line = ProgressLine("file", progress, quiet=False, out=Terminal())
    progress.connection = Paths(("wlan0", False), ("lte0", False))
    assert line.text(10.0) == "file:   0% of 100 MB, lte0+wlan0"
    progress.have_bytes = 25_000_000
    assert line.text(12.5) == "file:  25% of 100 MB, 10 MB/s, 7.5 s left, lte0+wlan0"
    progress.connection = Paths(("wlan0", True))
    # The rate is that of the last five seconds.
    assert line.text(17.6) == "file:  25% of 100 MB, waiting for a network"
    progress.connection, progress.state = None, "no server for now"
    assert line.text(18.2) == "file:  25% of 100 MB, no server for now"
    progress.have_bytes = 0  # it begins anew
    assert line.text(19.0) == "file:   0% of 100 MB, no server for now"


def test_it_is_drawn_in_place_and_taken_away(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    out = Terminal()
    line = ProgressLine("a-name-that-is-longer-than-the-line", Progress(), quiet=False, out=out)
    line.draw()
    assert out.getvalue() == "\r\033[Ka-name-that-is-longer-than-th"
    line.clear()
    assert out.getvalue().endswith("\r\033[K")


def test_a_line_that_is_too_long_keeps_what_matters():
    progress = Progress(0, 0, 30_000_000)
    line = ProgressLine("a-film-with-a-long-name.mkv", progress, quiet=False, out=Terminal())
    line.rate(0.0)
    progress.have_bytes = 6_000_000
    late = "may not be done by 14:33:17 (expected 14:33:23)"
    doing = f"{late}; over wlan0 and lte0; 3 more files"
    whole = f"a-film-with-a-long-name.mkv:  20% of 30 MB, 3 MB/s, {doing}"
    assert line.text(2.0, doing) == line.text(2.0, doing, len(whole)) == whole
    assert line.text(2.0, doing, len(whole) - 1) == whole.removesuffix("; 3 more files")
    said = line.text(2.0, doing, 79)
    assert said == f"a-film-with-a-l…: 20% of 30 MB, {late}"
    assert len(said) <= 79
    for width in range(20, 130):
        assert len(line.text(2.0, doing, width)) <= width


@pytest.mark.parametrize(("quiet", "out"), [(True, Terminal()), (False, io.StringIO())])
def test_nothing_is_drawn_where_nobody_looks(quiet, out):
    line = ProgressLine("file", Progress(), quiet=quiet, out=out)
    line.draw()
    line.clear()
    assert out.getvalue() == ""
