"""The demo's page: two policies transfer by transfer, and the sentences that compare them."""

import numpy as np
import pytest

from emu.runs import page, runs, table
from emu.runs.runs import RunFolder
from emu.runs.scenario import Load, Scenario
from emu.runs.summary import PolicyRun, summarise

LOAD = Load("a", "198.51.100.2", "down", 1_000, 2_000, per_minute=60.0)
POLICIES = ("wifi-first", "mptcp-wifi", "mptcp-cellular", "cedos-gateway")
COUNT = 40


def times(mean_s):
    """Return times that vary from transfer to transfer in the same way for every policy."""
    return [mean_s * (0.5 + number / (COUNT - 1)) for number in range(COUNT)]


def recorded(folder, gateway_s):
    every = {
        "wifi-first": [*times(1.0)[:-1], 30.0],
        "mptcp-wifi": times(0.9),
        "mptcp-cellular": times(0.4),
        "cedos-gateway": list(gateway_s),
    }
    flow = {
        "repeat": 0, "name": "a", "host": "h", "direction": "down", "size_bytes": 1000,
        "mptcp": False, "problem": "", "local_ip": "", "local_port": 1,
        "wifi_bytes": 0, "cellular_bytes": 0,
    }  # fmt: skip
    flows = [
        {
            **flow, "policy": name, "number": number, "planned_s": number / 10,
            "started_s": number / 10, "time_s": time_s, "censored": time_s >= 30.0,
            "network": "none" if name == "cedos-gateway" else "wifi",
        }
        for name, times_s in every.items()
        for number, time_s in enumerate(times_s)
    ]  # fmt: skip
    capacity = [
        {"network": network, "at_s": float(second), "rate_bps": 0.0 if second in dead else 1e7}
        for network, dead in (("wifi", (2, 3)), ("cellular", ()))
        for second in range(6)
    ]
    scenario = Scenario(load=(LOAD,), place="p", duration_s=5.0, policies=POLICIES)
    made = RunFolder.create(folder, scenario, {"duration_s": 5.0, "synthetic": False})
    for name in runs.tables_of(scenario):
        made.write_table(name, {"flows": flows, "capacity": capacity}.get(name, []))
    results = {
        name: PolicyRun(
            np.array(times_s), np.full(COUNT, 1e3), np.array(times_s) >= 30.0, [3.0], [1e6]
        )
        for name, times_s in every.items()
    }
    made.write_json("summary.json", summarise(results))
    return runs.read(folder)


def test_a_clear_difference_is_told_with_its_interval(tmp_path):
    said = " ".join(table.sentences(recorded(tmp_path / "run", times(0.2))))
    assert "the average transfer took 0.20 s and used 1 MB of LTE data and 3 J." in said
    assert "Kernel MPTCP, cellular first, took 0.40 s" in said, "the faster of its two orders"
    assert "Linux as it is took 1.71 s (1 did not end in time)" in said
    assert "40 transfers each; the gateway's time is 0.50 of kernel MPTCP's (95 %" in said
    assert "within noise" not in said


def test_the_page_opens_with_the_comparison_and_overwrites_no_other_file(tmp_path):
    """A stranger's run folder may have links in it."""
    folder, mine = tmp_path / "run", tmp_path / "mine.txt"
    recorded(folder, times(0.2))
    mine.write_text("mine")
    for name in ("report.html", "comparison.svg", "timeline-0.svg"):
        (folder / name).symlink_to(mine)
    text = page.write([folder]).read_text()
    assert text.index("each transfer, Linux") < text.index("With a gateway") < text.index("<table>")
    assert (folder / "comparison.svg").read_text().startswith("<?xml")
    assert mine.read_text() == "mine"


def test_every_transfer_is_a_row_and_the_outage_is_shaded(tmp_path):
    run = recorded(tmp_path / "run", times(0.2))
    assert page.outages(run.capacity, run.duration_s) == [(2.0, 4.0)]
    assert page.outages(run.capacity, 2.5) == [(2.0, 2.5)]
    figure = page.draw(run)
    for axis in figure.axes:
        bars = [patch for patch in axis.patches if patch.get_height() == pytest.approx(0.8)]
        assert len(bars) == COUNT
        assert [text.get_text() for text in axis.texts] == ["Wi-Fi is dead"]
    assert told(figure) == ["over Wi-Fi", "through the gateway", "not finished in time"]
    assert "through the gateway" in told(page.draw_timeline(run))


def told(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]
