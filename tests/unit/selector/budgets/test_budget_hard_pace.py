"""How quickly hard budgets are spent, and how soon one must check again."""

from cedos.selector.budgets.hard_pace import Pace


def test_the_nearer_the_end_the_sooner_the_next_look() -> None:
    pace = Pace(usual_per_s=1e6)
    pace.observe(0.0, 10.0)
    # A quarter of the time that is left, between a twentieth of a second and one.
    for left, next_s in ((1e9, 1.0), (2e6, 0.5), (1.0, 0.05), (-5.0, 0.05)):
        assert pace.next_check_s(left, 10.0) == next_s
    assert pace.next_check_s(1.0, 12.0) == 0.2  # nothing moves
    pace.observe(8e6, 12.0)  # quicker than was thought
    assert pace.next_check_s(8e6, 12.0) == 0.5
    assert Pace(0.0).next_check_s(0.0, 0.0) == 1.0


def test_what_is_coming_follows_the_last_moments_and_is_never_much() -> None:
    pace = Pace(1e6)
    pace.observe(5e6, 10.0)
    assert pace.coming(1e9) == 0.0
    pace.observe(6e6, 11.0)
    assert pace.coming(1e9) == 2e5
    assert pace.coming(1e6) == 1e4  # 1 % of all, at most
    pace.observe(6e6, 11.5)
    assert pace.coming(1e9) == 2e5
    pace.observe(6e6, 12.1)
    assert pace.coming(1e9) == 0.0
    pace.observe(100.0, 13.0)  # a new period
    assert pace.coming(1e9) == 0.0
    pace.observe(200.0, 13.0)  # twice in one instant
    assert pace.coming(1e9) == 0.0
