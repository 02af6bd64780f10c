"""The computation that is offloaded does what it says: it recognises words, and can be stopped."""

import pytest

from emu.meatballs.speech import recognise, utterance, words_in


@pytest.mark.parametrize("seed", range(6))
def test_words_are_recognised(seed: int) -> None:
    sound, spoken = utterance(2.0, seed)
    assert words_in(sound) == spoken
    assert len(spoken) == 4


def test_noise_alone_is_not_the_words() -> None:
    sound, spoken = utterance(2.0, 1)
    assert words_in(sound[::-1]) != spoken


def test_it_stops_when_nobody_waits() -> None:
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(1)
        return len(asked) > 5

    assert recognise(4.0, 1, stopped) is None
    assert len(asked) == 6


def test_work_grows_with_the_length() -> None:
    frames = []
    for seconds in (1.0, 4.0):
        count: list[int] = []
        recognise(seconds, 2, lambda count=count: bool(count.append(1)))  # type: ignore[misc]
        frames.append(len(count))
    assert frames[1] == pytest.approx(4 * frames[0], rel=0.1)
