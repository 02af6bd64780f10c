from ipaddress import ip_address

import pytest

from cedos.errors import ConfigError
from cedos.model import FlowKey
from cedos.profiler.hints import Hint, Hints, Match

KEY = FlowKey(ip_address("192.168.43.2"), 40000, ip_address("198.51.100.1"), 443)
KEY6 = FlowKey(ip_address("fd00::2"), 40000, ip_address("2001:db8::1"), 443)


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        (Match(destination="198.51.100.1"), True),
        (Match(destination="198.51.100.0/24", port=443), True),
        (Match(destination="198.51.100.7/24"), True),
        (Match(destination="198.51.101.0/24"), False),
        (Match(destination="2001:db8::/32"), False),
        (Match(port=443), True),
        (Match(port=80), False),
        (Match(local_port=40000), True),
        (Match(local_port=40001), False),
        (Match(mark=9), True),
        (Match(mark=8), False),
        (Match(server_name="Files.Example.org."), True),
        (Match(server_name="*.example.org"), True),
        (Match(server_name="*.files.example.org"), False),
        (Match(server_name="example.org"), False),
        (Match(server_name="files.example.org", port=80), False),
    ],
)
def test_what_a_hint_is_about(match: Match, fits: bool) -> None:
    assert match.fits(KEY, "files.example.org", 9) is fits


def test_names_and_prefixes() -> None:
    assert not Match(server_name="files.example.org").fits(KEY, None, None)
    assert Match(destination="2001:db8::/32").fits(KEY6, None, None)


def test_a_hint_about_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="which transfers"):
        Match()
    with pytest.raises(ConfigError, match=r"not 'example\.org'"):
        Match(destination="example.org")


def test_the_newest_that_fits_counts_while_it_lasts() -> None:
    hints = Hints()
    old = Hint(Match(port=443), size_bytes=1)
    new = Hint(Match(destination="198.51.100.1"), size_bytes=2, until_s=10.0)
    other = Hint(Match(port=80), size_bytes=3)
    for hint in (old, new, other):
        hints.add(hint)
    assert hints.find(KEY, None, None, 9.9) is new
    assert hints.find(KEY, None, None, 10.0) is old
    assert len(hints) == 2


def test_hints_are_taken_back_and_bounded() -> None:
    hints = Hints()
    number = hints.add(Hint(Match(port=443)))
    assert hints.remove(number)
    assert not hints.remove(number)
    assert hints.find(KEY, None, None, 0.0) is None
    for port in range(1, 400):
        hints.add(Hint(Match(port=port)))
    assert len(hints) == 256
    ports = [hint.match.port for port in (1, 399) if (hint := _about(hints, port))]
    assert ports == [399]


def _about(hints: Hints, port: int) -> Hint | None:
    return hints.find(FlowKey(KEY.local, KEY.local_port, KEY.remote, port), None, None, 0.0)
