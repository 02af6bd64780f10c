"""A computation worth offloading: words of tones are recognised in recorded sound, in plain Python.

It stands in for the dissertation's speech recogniser (4.4.3.2): sound at 20 KB a second, work in
proportion to the length of the utterance, and an answer that can be right or wrong. Band energies by
Goertzel's algorithm, then Viterbi's through the words' templates, in any order, as often as they come.
"""

import math
import random
from collections.abc import Sequence
from functools import lru_cache

SAMPLES_PER_S = 10_000
BYTES_PER_S = 2 * SAMPLES_PER_S
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WORD_S = 0.5
RECORDINGS = 20
RECORDED_S = 8.0

_FRAME = 250
_BANDS_HZ = (320.0, 480.0, 700.0, 960.0, 1280.0, 1700.0, 2240.0, 3000.0)
_STATES = 5
_FRAMES_PER_STATE = int(WORD_S * SAMPLES_PER_S / _FRAME / _STATES)
_NOISE = 0.6

Frame = tuple[float, ...]


def utterance(seconds: float, seed: int) -> tuple[list[float], list[str]]:
    """Sound of random words, with noise, and the words: as many whole ones as fit, at least one."""
    rng = random.Random(f"utterance:{seed}")
    spoken = [rng.choice(WORDS) for _ in range(max(1, int(seconds / WORD_S)))]
    sound: list[float] = []
    per_state = _FRAMES_PER_STATE * _FRAME
    for word in spoken:
        for first, second in _tones(word):
            sound += [
                math.sin(first * k) + math.sin(second * k) + rng.gauss(0.0, _NOISE)
                for k in range(per_state)
            ]
    return sound, spoken


def words_in(sound: Sequence[float]) -> list[str]:
    begins = range(0, len(sound) - _FRAME + 1, _FRAME)
    return _decoded([_features(sound[begin : begin + _FRAME]) for begin in begins])


def recognise(seconds: float, seed: int, times: int = 1) -> list[str]:
    """Recognises one of `RECORDINGS` sounds; `times` over, as a device does that is so much slower."""
    sound = recorded(seed)[: int(seconds * SAMPLES_PER_S)]
    found: list[str] = []
    for _ in range(times):
        found = words_in(sound)
    return found


@lru_cache(maxsize=RECORDINGS)
def _recording(number: int) -> tuple[float, ...]:
    return tuple(utterance(RECORDED_S, number)[0])


def recorded(seed: int) -> tuple[float, ...]:
    """One of the recordings, made when it is first asked for: longer than any utterance."""
    return _recording(seed % RECORDINGS)


def _tones(word: str) -> list[tuple[float, float]]:
    """The two tones of each part of a word, in radians per sample."""
    rng = random.Random(f"word:{word}")
    step = 2 * math.pi / SAMPLES_PER_S
    pairs = [rng.sample(_BANDS_HZ, 2) for _ in range(_STATES)]
    return [(step * first, step * second) for first, second in pairs]


@lru_cache(maxsize=1)
def _templates() -> dict[str, list[Frame]]:
    return {
        word: [
            _features([math.sin(first * k) + math.sin(second * k) for k in range(_FRAME)])
            for first, second in _tones(word)
        ]
        for word in WORDS
    }


def _features(samples: Sequence[float]) -> Frame:
    energies = []
    for band_hz in _BANDS_HZ:
        factor = 2 * math.cos(2 * math.pi * band_hz / SAMPLES_PER_S)
        older = newer = 0.0
        for sample in samples:
            older, newer = newer, sample + factor * newer - older
        energies.append(older * older + newer * newer - factor * older * newer)
    total = sum(energies) or 1.0
    return tuple([energy / total for energy in energies])


def _decoded(frames: Sequence[Frame]) -> list[str]:
    """Viterbi: each word is left to right through its states; after its last, any word begins."""
    templates = _templates()
    costs = {word: [math.inf] * _STATES for word in WORDS}
    words: dict[str, list[tuple[str, ...]]] = {word: [()] * _STATES for word in WORDS}
    ended_cost = 0.0
    ended_words: tuple[str, ...] = ()
    for frame in frames:
        best_cost, best_words = math.inf, ended_words
        for word, states in templates.items():
            cost, history = costs[word], words[word]
            for state in range(_STATES - 1, -1, -1):
                away = sum([(a - b) ** 2 for a, b in zip(frame, states[state], strict=True)])
                enter = cost[state - 1] if state else ended_cost
                if enter < cost[state]:
                    cost[state] = enter
                    history[state] = history[state - 1] if state else ended_words
                cost[state] += away
            if cost[-1] < best_cost:
                best_cost, best_words = cost[-1], (*history[-1], word)
        ended_cost, ended_words = best_cost + 0.5, best_words
    return list(ended_words)
