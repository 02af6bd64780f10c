"""What is done or waited for, as news: a state that comes and goes every second is told once."""

import time
from collections.abc import Callable
from math import inf
from typing import Final

_LASTED_S: Final = 5.0
_FORGOTTEN_S: Final = 60.0
"""What was so lately is told again only once it has lasted; what was longer ago, at once."""


class StateNews:
    """Tells of a new state at once, and of one that was there lately when it has lasted."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock = say, clock
        self._left_s: dict[str, float] = {}
        self._state = self._told = self._text = ""
        self._since_s = 0.0

    def now(self, state: str, text: str) -> None:
        """This is so now; `text` says it, and may change while the state does not."""
        self._text = text
        if state != self._state:
            left_s = self._left_s.get(state, -inf)
            self._leave()
            self._state, self._since_s = state, self._clock()
            if self._since_s - left_s > _FORGOTTEN_S:
                self._tell()
        self.look()

    def look(self) -> None:
        """To be called now and again: what was held back may have lasted."""
        lasted = self._clock() - self._since_s >= _LASTED_S
        if self._state and self._state != self._told and lasted:
            self._tell()

    def over(self) -> None:
        """It is so no more, and something else is said of that: what was told last is no news of now."""
        self._leave()
        self._told = ""

    def _leave(self) -> None:
        now = self._clock()
        if self._state:
            self._left_s[self._state] = now
        self._state = ""
        self._left_s = {
            state: left_s for state, left_s in self._left_s.items() if now - left_s <= _FORGOTTEN_S
        }

    def _tell(self) -> None:
        self._told = self._state
        self._say(self._text)
