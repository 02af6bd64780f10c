"""What proxies tell of their players counts for a few seconds."""

import pytest

from cedos.api.transfers import PlayersReport, PlayingMessage
from cedos.daemon.flows.told_players import ToldPlayers
from cedos.errors import ConfigError


def report(program: int, *servers: str) -> PlayersReport:
    players = tuple(PlayingMessage(server=each, buffered_s=1.0) for each in servers)
    return PlayersReport(program=f"{program:032x}", players=players)


def test_the_last_word_of_each_program_counts_until_it_is_old() -> None:
    told = ToldPlayers()
    told.told(report(1, "a", "b"), 1000, 0.0)
    told.told(report(1, "a"), 1000, 3.0)
    told.told(report(1, "c"), 0, 4.0)  # another user's
    assert [each.server for each in told.listed(5.0)] == ["a", "c"]
    assert [each.server for each in told.listed(8.5)] == ["c"]
    assert told.listed(20.0) == []


def test_it_is_bounded() -> None:
    told = ToldPlayers()
    for program in range(64):
        told.told(report(program, "a"), 1000, 0.0)
    told.told(report(0, "b"), 1000, 1.0)
    with pytest.raises(ConfigError, match="64 programs"):
        told.told(report(64, "a"), 1000, 1.0)
    told.told(report(64, "a"), 1000, 10.0)
