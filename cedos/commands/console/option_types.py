"""Types of options that several commands have: sizes, durations, bit rates, networks, times."""

import re
import sys
from collections.abc import Callable
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Final, TypeVar

import click

from cedos.commands.console.render import echo
from cedos.config import amounts

T = TypeVar("T")
_SIZE_FACTORS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_RATE_FACTORS: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


class Parsed(click.ParamType[T]):
    """A type of option with the function `parse`, whose ValueError has the message for the user."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):  # a default, or read before
            read: T = value
            return read
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def at_a_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr.isatty()


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?)B?", text)
    size = int(float(match[1]) * _SIZE_FACTORS[match[2]]) if match else 0
    if not 1 <= size <= 10**15:
        raise ValueError(f"{text!r} is not a size such as 3000, 20kB or 1.5GB")
    if text.isdecimal() and size < amounts.PLAINLY_BYTES and at_a_terminal():
        plural = "s" * (size != 1)
        echo(f'{size} byte{plural}, as there is no unit (such as "{text}MB")', err=True)
    return size


def _bit_rate(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMG]?)(?:bit/s|bit|bps|b/s)?", text)
    rate_bps = float(match[1]) * _RATE_FACTORS[match[2]] if match else 0.0
    if not 1e3 <= rate_bps <= 1e10:
        raise ValueError(f"{text!r} is not a bit rate such as 640k or 2.5M")
    return rate_bps


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a network such as 192.0.2.0/24") from None


# Bytes: `3000`, `10MB`, `1.5 GB`. At a terminal, a size without a unit is echoed.
SIZE: Final = Parsed("size", _size)
# Seconds: `4`, `500ms`, `2min`, `1d`.
DURATION: Final = Parsed("duration", amounts.seconds)
# Bits per second: `640k`, `2.5M`, `640kbit/s`.
BIT_RATE: Final = Parsed("rate", _bit_rate)
# `192.0.2.0/24`, `2001:db8::/32`, or one address.
NETWORK: Final = Parsed("network", _network)
# Seconds since the epoch: `18:00`, `2h`, `tomorrow`, `2026-12-01 18:00`.
BY: Final = Parsed("time", lambda text: amounts.by(text, datetime.now()).timestamp())
BY_HELP: Final = (
    "Wanted by then: 18:00, 2h, 1d, tomorrow (its morning, 8:00), friday 18:00, 2026-12-01."
)
