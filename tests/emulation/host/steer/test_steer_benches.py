"""The benches of steering run through; their times are for a quiet machine, not for here."""

from emu.bench import crash, switch


def test_a_killed_process_leaves_transfers_alive_and_the_host_restorable():
    lines = []
    figures = crash.run(lines.append)
    assert figures["restored_share"] == 1.0, lines
    # A dozen transfers share two thin links: one may pause for longer than a look lasts.
    assert figures["connections_survived_share"] > 0.8, lines


def test_living_transfers_move_in_both_directions():
    figures = switch.run(lambda _: None, connections=1, flips=2)
    for direction in ("down", "up"):
        assert figures[f"{direction}_flips"] == 2
        # Found on the new path at all, within the time that the bench looks.
        assert figures[f"{direction}_p95_ms"] < 1000
