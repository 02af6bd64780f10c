"""Bit rates on the command line."""

import re
from typing import Any, Final

import click

_FACTORS: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


class BitRateType(click.ParamType[float]):
    """Bits per second: `640k`, `2.5M`, `640kbit/s`."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMG]?)(?:bit/s|bps|b/s)?", value)
        rate_bps = float(match[1]) * _FACTORS[match[2]] if match else 0.0
        if not 1e3 <= rate_bps <= 1e10:
            self.fail(f"{value!r} is not a bit rate such as 640k or 2.5M", param, ctx)
        return rate_bps
