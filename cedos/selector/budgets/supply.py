"""What of a supply may be planned with, and the price once it is used up (dissertation, 3.2.2.4)."""

from typing import Final

PROHIBITIVE: Final = 2.0**200
"""Seconds per unit once a budget is spent: more than any transfer can save, and still a number."""

KEPT_OF_LEFT: Final = 0.05
KEPT_OF_SUPPLY: Final = 0.01
"""Odyssey's insurance against what nobody foresaw (3.2.2.4): these shares are not planned with."""


def reduced(left: float, supply: float) -> float:
    """What may be planned with: what is left without Odyssey's insurance; 0 or less: it is spent."""
    return left - (KEPT_OF_LEFT * left + KEPT_OF_SUPPLY * supply)
