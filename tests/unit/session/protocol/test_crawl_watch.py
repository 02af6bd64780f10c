"""When a path counts as having become too slow for what is on the way there."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from cedos.session.protocol.path_watch import CrawlWatch

LOOK_S = 0.05


class PlayedPath:
    """A path whose rate is played, with a queue that is kept at some length or drains."""

    def __init__(self) -> None:
        self.watch = CrawlWatch()
        self.now_s, self.acknowledged, self.on_way = 0.0, 0.0, 0.0
        self.rtt_s = 0.02
        self.begun: list[float] = []

    def play(
        self,
        seconds: float,
        rate_bps: float,
        *,
        queue_bytes: float | None = None,
        elsewhere: Callable[[float], float] = lambda size: 8 * size / 16e6,
    ) -> None:
        """`queue_bytes`: what is kept on the way; None: nothing is added."""
        for _ in range(round(seconds / LOOK_S)):
            self.now_s += LOOK_S
            carried = min(rate_bps / 8 * LOOK_S, self.on_way)
            self.acknowledged += carried
            self.on_way = self.on_way - carried if queue_bytes is None else queue_bytes
            if self.watch.observe(
                int(self.acknowledged),
                int(self.on_way),
                elsewhere(self.on_way),
                self.rtt_s,
                self.now_s,
            ):
                self.begun.append(self.now_s)


def test_a_path_that_fades_is_noticed_once_and_within_half_a_second() -> None:
    path = PlayedPath()
    path.play(2.0, 24e6, queue_bytes=300_000)
    assert not path.watch.crawls
    path.play(1.0, 200e3)
    assert len(path.begun) == 1
    assert path.begun[0] <= 2.5
    assert path.watch.crawls
    path.play(20.0, 200e3)
    assert not path.watch.crawls, "all of it has arrived"
    path.play(3.0, 200e3, queue_bytes=32_000)
    assert len(path.begun) == 1, "by now it is planned as what it is"


def test_where_it_would_be_no_sooner_elsewhere_it_is_waited_for() -> None:
    path = PlayedPath()
    path.play(2.0, 24e6, queue_bytes=300_000, elsewhere=lambda _size: float("inf"))
    path.play(5.0, 200e3, elsewhere=lambda _size: float("inf"))
    path.play(1.0, 200e3, elsewhere=lambda size: 8 * size / 300e3)
    assert not path.begun


def test_a_slow_path_with_a_long_queue_is_none_that_fades() -> None:
    path = PlayedPath()
    path.play(30.0, 500e3, queue_bytes=200_000)
    assert not path.begun


def test_a_path_that_had_nothing_to_do_is_none_that_fades() -> None:
    path = PlayedPath()
    path.play(2.0, 24e6, queue_bytes=300_000)
    path.play(2.0, 24e6)
    for _ in range(20):
        path.play(0.5, 24e6)
        path.on_way += 2_000
        path.play(0.5, 24e6)
    assert not path.begun


def test_what_is_asked_over_a_long_way_is_not_late_before_it_can_be_here() -> None:
    path = PlayedPath()
    path.rtt_s = 0.6
    path.play(3.0, 24e6, queue_bytes=2_000_000)
    path.play(2.0, 24e6)
    for _ in range(6):
        path.on_way = 30_000
        path.play(0.6, 0.0)  # a round trip
        path.play(0.2, 24e6)
        assert not path.watch.crawls
    assert not path.begun


def test_the_rate_that_it_had_is_forgotten() -> None:
    path = PlayedPath()
    path.play(2.0, 24e6, queue_bytes=300_000)
    path.play(2.0, 24e6)
    path.play(60.0, 0.0)  # nothing is on the way
    path.on_way = 100_000
    path.play(2.0, 1e6)
    assert not path.begun


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1 << 24),
            st.integers(0, 1 << 22),
            st.floats(0.0, 5.0),
            st.floats(0.0, 2.0),
        ),
        max_size=60,
    )
)
def test_whatever_is_seen_it_begins_only_where_it_did_not_crawl(
    seen: list[tuple[int, int, float, float]],
) -> None:
    watch, now_s, acknowledged, crawled = CrawlWatch(), 0.0, 0, False
    for more, on_way, elsewhere_s, later_s in seen:
        now_s, acknowledged = now_s + later_s, acknowledged + more
        begins = watch.observe(acknowledged, on_way, elsewhere_s, 0.05, now_s)
        assert begins <= (watch.crawls and not crawled)
        assert on_way or not watch.crawls
        crawled = watch.crawls
