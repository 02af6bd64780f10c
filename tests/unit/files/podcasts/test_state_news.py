"""States that come and go are told once."""

from cedos.files.podcasts.state_news import StateNews


class Listener:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.said: list[str] = []
        self.news = StateNews(self.said.append, lambda: self.now_s)

    def for_s(self, seconds: float, state: str = "") -> None:
        """Looks twice a second."""
        for _ in range(int(2 * seconds)):
            if state:
                self.news.now(state, f"{state}.")
            else:
                self.news.look()
            self.now_s += 0.5


def test_what_comes_and_goes_is_told_once_and_then_what_lasts() -> None:
    one = Listener()
    for _ in range(5):
        one.for_s(2, "over lte0")
        one.for_s(2, "waiting")
    assert one.said == ["over lte0.", "waiting."]
    one.for_s(4.5, "over lte0")
    assert one.said == ["over lte0.", "waiting."]
    one.for_s(2, "over lte0")
    assert one.said == ["over lte0.", "waiting.", "over lte0."]
    one.for_s(100, "over lte0")
    one.for_s(1, "waiting")  # not for long enough to be told, but not forgotten for a minute
    assert one.said[3:] == ["waiting."]


def test_what_is_new_is_told_at_once() -> None:
    one = Listener()
    for title in "abc":
        one.for_s(0.5, title)
        one.news.over()
    assert one.said == ["a.", "b.", "c."]
    one.for_s(61)
    one.for_s(0.5, "a")
    assert one.said == ["a.", "b.", "c.", "a."]


def test_what_is_over_is_not_told_later() -> None:
    one = Listener()
    one.for_s(1, "a")
    one.for_s(1, "b")
    one.for_s(1, "a")
    one.news.over()
    one.for_s(30)
    assert one.said == ["a.", "b."]
    one.for_s(4, "b")
    assert one.said == ["a.", "b."]
    one.for_s(2, "b")
    assert one.said == ["a.", "b.", "b."]
