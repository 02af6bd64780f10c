from emu.lab.runs.disturbance import disturbances


def test_a_run_that_was_left_alone_says_nothing() -> None:
    assert not list(disturbances(most_pages=9_000, free_pages=280_000, latest_s=0.1))


def test_short_tcp_memory_and_late_transfers_are_said_with_their_numbers() -> None:
    memory, late = disturbances(most_pages=300_000, free_pages=280_000, latest_s=1.26)
    assert "300000 pages" in memory
    assert "280000" in memory
    assert "1.3 s late" in late
