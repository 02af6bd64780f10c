"""Numbers for people: two or three significant figures, and never an exponent."""

from math import floor, isfinite, log10

_MOST_DECIMALS = 9


def rounded(value: float, figures: int = 2) -> str:
    """Return a number with so many significant figures; a value too small to show is 0."""
    if value == 0.0 or not isfinite(value):
        return f"{value:g}"
    decimals = min(max(figures - 1 - floor(log10(abs(value))), 0), _MOST_DECIMALS)
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def lasting(time_s: float) -> str:
    """Return a duration such as `95 s`, `94 minutes`, `1.7 hours` or `26 days`."""
    for limit_s, divisor, unit in ((600.0, 1, "s"), (6000.0, 60, "minutes"), (2e5, 3600, "hours")):
        if time_s < limit_s:
            return f"{rounded(time_s / divisor)} {unit}"
    return f"{rounded(time_s / 86_400)} days"
