"""The computation that is offloaded does what it says: it recognises words."""

import pytest

from emu.workloads import speech
from emu.workloads.speech import recognise, utterance, words_in


@pytest.mark.parametrize("seed", range(6))
def test_words_are_recognised(seed: int) -> None:
    sound, spoken = utterance(2.0, seed)
    assert words_in(sound) == spoken
    assert len(spoken) == 4


def test_noise_alone_is_not_the_words() -> None:
    sound, spoken = utterance(2.0, 1)
    assert words_in(sound[::-1]) != spoken


def test_work_grows_with_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    speech.words_in([0.0] * 1000)  # the templates are made once
    features, count = speech._features, []
    monkeypatch.setattr(speech, "_features", lambda of: count.append(len(of)) or features(of))
    recognise(1.0, 2)
    short = len(count)
    recognise(4.0, 2)
    assert len(count) == pytest.approx(5 * short, rel=0.1)
