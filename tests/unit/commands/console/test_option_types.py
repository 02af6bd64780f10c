"""What options take, and what they say of what they do not take."""

from ipaddress import ip_network

import click
import pytest

from cedos.commands.console.option_types import BIT_RATE, DURATION, NETWORK, SIZE


@pytest.mark.parametrize(
    ("text", "size"),
    [("3000", 3000), ("20kB", 20_000), ("1.5GB", 1_500_000_000), ("2M", 2_000_000), ("7 B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert SIZE.convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "big", "1e3", "1 PB", "9999999TB", "3kb"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size such as"):
        SIZE.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("4", 4.0), ("500ms", 0.5), ("2min", 120.0), ("1.5 h", 5400.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1s", "soon", "1y"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no duration such as"):
        DURATION.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "bps"), [("640k", 640e3), ("2.5M", 2.5e6), ("640kbit/s", 640e3), ("1 Gbps", 1e9)]
)
def test_bit_rates(text: str, bps: float) -> None:
    assert BIT_RATE.convert(text, None, None) == bps


@pytest.mark.parametrize("text", ["", "0", "999", "fast", "640 kB", "11G"])
def test_what_is_no_bit_rate(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a bit rate such as"):
        BIT_RATE.convert(text, None, None)


def test_networks() -> None:
    assert NETWORK.convert("192.0.2.0/24", None, None) == ip_network("192.0.2.0/24")
    with pytest.raises(click.BadParameter, match=r"'192\.0\.2\.1/24' is not a network such as"):
        NETWORK.convert("192.0.2.1/24", None, None)


def test_what_was_read_before_stays() -> None:
    assert SIZE.convert(7, None, None) == 7
