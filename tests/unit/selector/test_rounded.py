import pytest

from cedos.plain_text import round_figures


@pytest.mark.parametrize(
    ("value", "two", "three"),
    [
        (0.0, "0", "0"), (0.0000123, "0.000012", "0.0000123"), (1e-12, "0", "0"),
        (0.0123, "0.012", "0.0123"), (0.5, "0.5", "0.5"), (1.26, "1.3", "1.26"), (26.0, "26", "26"),
        (99.7, "100", "99.7"), (123.4, "123", "123"), (1_234_567.0, "1234567", "1234567"),
        (-2.5e3, "-2500", "-2500"), (float("inf"), "inf", "inf"),
    ],
)  # fmt: skip
def test_no_number_has_an_exponent(value, two, three):
    assert round_figures(value) == two
    assert round_figures(value, 3) == three
