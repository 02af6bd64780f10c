"""What a player has in store, and when it needs a metered network."""

import pytest

from cedos.proxy.local.players.cmcd import PlayerWord
from cedos.proxy.local.players.listed_stream import ListedStreams
from cedos.proxy.local.players.player import ENDLESS, Piece, Player
from cedos.proxy.local.players.playlist import ListedSegment
from cedos.session.protocol.buffer_manager import BufferSituation

RATE = 800e3  # 100 kB a second
READ_IN_S = 0.5


def word(buffer_s: float | None, kind: str = "v", **more: object) -> PlayerWord:
    return PlayerWord("s", kind, buffer_s, RATE, 2.0, **more)  # type: ignore[arg-type]


def wants(player: Player, now: float, metered_bps: float | None = 8e6) -> bool:
    """No unmetered network is there."""
    situation = BufferSituation(
        player.buffered_bytes(now), metered_bps=metered_bps, awaited=player.awaited(now)
    )
    return player.manager.metered_wanted(situation)


def test_a_request_waits_until_the_store_is_low_and_no_longer() -> None:
    player = Player("p")
    player.asked(word(24.0), 100.0)
    assert player.buffered_s(100.0) == 24.0
    low_s = player.manager.thresholds()[0] / (RATE / 8)
    fetched_s = 2.0 * RATE / 8e6  # a segment is played once all of it is there
    due_s = 100.0 + 24.0 - READ_IN_S - low_s - fetched_s
    assert not wants(player, due_s - 0.1)
    assert wants(player, due_s + 0.1)


def test_a_slow_metered_network_is_begun_earlier_and_an_unknown_one_in_the_time_that_it_plays() -> (
    None
):
    for metered_bps, fetched_s in ((400e3, 4.0), (None, 2.0)):
        player = Player("p")
        player.asked(word(24.0), 100.0)
        due_s = 124.0 - READ_IN_S - player.manager.thresholds()[0] / (RATE / 8) - fetched_s
        assert not wants(player, due_s - 0.1, metered_bps)
        assert wants(player, due_s + 0.1, metered_bps)


def test_what_came_of_a_segment_need_not_be_fetched() -> None:
    player = Player("p")
    piece = player.asked(word(24.0), 0.0)
    assert player.awaited(0.0)[:3] == (200_000, False, None)
    piece.received_bytes = 150_000
    assert player.awaited(0.0)[:3] == (50_000, True, None)
    player.ended(piece, 1.0, whole=True)
    assert player.awaited(0.0)[:3] == (0, False, None)
    assert player.buffered_s(1.5) == 24.0 + 2.0 - 1.5


def test_the_slowest_segment_of_late_says_how_long_the_next_one_takes() -> None:
    player = Player("p")
    for lasted_s, metered in ((5.0, False), (4.0, True), (0.2, True), (0.4, True), (0.1, True)):
        piece = player.asked(word(24.0), 0.0)
        piece.came(1_000, 10.0)
        piece.came(200_000, 10.0 + lasted_s)
        player.ended(piece, 10.0 + lasted_s, whole=True, metered=metered)
    assert player.awaited(20.0).metered_bps == pytest.approx(8 * 200_000 / 0.4)
    player.asked(word(24.0), 100.0)
    due_s = 124.0 - READ_IN_S - player.manager.thresholds()[0] / (RATE / 8) - 0.4
    assert not wants(player, due_s - 0.1, 100e3)
    assert wants(player, due_s + 0.1, 100e3)


def test_it_begins_at_once_and_refills_to_high() -> None:
    player = Player("p")
    piece = player.asked(word(0.0, urgent=True), 0.0)
    assert wants(player, 0.0)
    player.ended(piece, 0.3, whole=True)
    piece = player.asked(word(2.0), 0.3)
    assert wants(player, 0.3)  # goes on
    player.ended(piece, 0.6, whole=True)
    player.asked(word(30.0), 0.6)
    assert not wants(player, 0.6)


def test_nothing_said_is_nothing_in_store() -> None:
    for said in (None, PlayerWord("s", "i"), PlayerWord("s", "v", 24.0), word(24.0, urgent=True)):
        player = Player("p")
        player.asked(said, 0.0)
        assert player.buffered_s(0.0) == 0.0


def test_who_asks_for_nothing_needs_nothing() -> None:
    player = Player("p")
    piece = player.asked(word(1.0), 0.0)
    player.ended(piece, 0.5, whole=True)
    assert player.buffered_s(0.6) == 1.0 + 2.0 - 0.6
    assert player.buffered_bytes(2.0) == ENDLESS


def test_the_emptier_of_sound_and_pictures_counts() -> None:
    player = Player("p")
    player.asked(word(24.0), 0.0)
    player.asked(word(5.0, "a"), 0.0)
    assert player.buffered_s(1.0) == 4.0
    assert player.buffered_bytes(1.0) == (4.0 - READ_IN_S) * 2 * RATE / 8  # both have to come


def test_what_precedes_the_segments_takes_nothing_of_the_bit_rate() -> None:
    player = Player("p")
    player.ended(player.asked(word(0.0, "i"), 0.0), 0.1, whole=True)
    player.asked(word(24.0), 0.2)
    assert player.buffered_bytes(0.2) == (24.0 - READ_IN_S) * RATE / 8


def test_the_first_of_another_rendition_waits_as_if_it_were_larger() -> None:
    player = Player("p")
    player.ended(player.asked(word(24.0), 0.0), 0.0, whole=True)
    other = PlayerWord("s", "w", 24.0, None, 2.0)
    assert player.is_known(other)
    player.asked(other, 0.0)
    assert player.awaited(0.0).left_bytes == 2 * 2.0 * RATE / 8
    assert not wants(player, 0.0)


def test_a_faster_player_has_less() -> None:
    player = Player("p")
    player.asked(word(24.0, rate=2.0), 0.0)
    assert player.buffered_s(5.0) == 14.0


def test_who_gave_up_is_not_let_wait_as_long_for_the_same_again() -> None:
    player = Player("p")
    player.ended(player.asked(word(60.0), 0.0, b"/1"), 10.0, whole=False)
    again = player.asked(word(50.0), 10.0, b"/1")
    assert player.buffered_s(16.0) == 44.0
    assert player.buffered_s(17.5) == 0.0
    player.ended(again, 18.0, whole=True)
    player.asked(word(44.0), 18.0, b"/2")
    assert player.buffered_s(38.0) == 24.0
    seeking = Player("p")
    seeking.ended(seeking.asked(word(60.0), 0.0, b"/1"), 1.0, whole=False)
    seeking.asked(word(60.0), 1.0, b"/1")
    assert seeking.buffered_s(21.0) == 40.0


def held(player: Player, now: float, target: bytes = b"/1", buffer_s: float = 60.0) -> Piece:
    piece = player.asked(word(buffer_s), now, target)
    piece.held = True
    return piece


def test_a_head_is_due_before_its_player_gives_up_and_not_for_ever() -> None:
    player = Player("p")
    piece = held(player, 0.0)
    assert [player.awaited(now).head for now in (0.0, 5.9, 6.1, 9.9, 10.1)] == [
        False, False, True, True, False,
    ]  # fmt: skip
    piece.answered = True
    assert not player.heads_due(6.1)


def test_heads_are_no_more_than_what_was_held() -> None:
    player = Player("p")
    held(player, 0.0)
    other = player.asked(word(60.0, "a"), 0.0)
    assert not player.heads_due(6.1)
    other.held = True
    assert player.heads_due(6.1)
    other.headed = other.answered = True
    assert player.heads_due(6.1)
    player.let_go()
    assert not player.heads_due(6.1)


def test_what_is_low_is_wanted_whole() -> None:
    player = Player("p")
    held(player, 0.0)
    urgent = player.asked(word(0.0, "a", urgent=True), 6.0)
    urgent.held = True
    assert not player.heads_due(6.1)


def test_who_gave_up_has_the_head_in_time() -> None:
    player = Player("p")
    player.ended(player.asked(word(60.0), 0.0, b"/1"), 5.0, whole=False)
    piece = held(player, 5.0)
    assert not player.heads_due(5.0 + 2.4)
    assert player.heads_due(5.0 + 2.6)  # of 3.5
    piece.headed = piece.answered = True
    assert player.buffered_s(25.0) == 40.0


def test_who_gave_up_although_the_head_was_there_is_brought_no_heads() -> None:
    player = Player("p")
    piece = held(player, 0.0)
    piece.headed = piece.answered = True
    piece.came(1_500, 7.0)
    player.ended(piece, 20.0, whole=False)
    seeking = held(player, 20.5, b"/9")
    assert player.heads_due(27.0)  # it may have gone elsewhere
    player.ended(seeking, 28.0, whole=True)
    held(player, 28.0)
    assert not player.heads_due(35.0)
    assert player.buffered_s(41.9) > 0.0
    assert player.buffered_s(42.1) == 0.0


def test_what_waited_behind_its_head_says_nothing_of_the_rate() -> None:
    player = Player("p")
    piece = held(player, 0.0)
    piece.headed = True
    piece.came(1_500, 7.0)
    piece.came(160_000, 27.0)
    player.ended(piece, 27.0, whole=True, metered=True)
    assert player.awaited(27.0).metered_bps is None


PICTURES = {f"/v{n}": ListedSegment(n, 4.0) for n in range(10)}
SOUND = {f"/a{n}": ListedSegment(n, 4.0) for n in range(10)}
SMALLER = {f"/w{n}": ListedSegment(n, 4.0) for n in range(10)}


def store_s(streams: ListedStreams, target: str, now: float) -> float:
    found = streams.word(target, now)
    assert found is not None
    assert found.buffer_s is not None
    return round(found.buffer_s, 3)


def test_what_came_and_cannot_have_been_played_is_in_store() -> None:
    streams = ListedStreams()
    streams.read("v", PICTURES, 0.0)
    assert streams.word("/x", 0.0) is None
    assert store_s(streams, "/v0", 0.0) == 0.0
    for n in range(3):
        streams.came(f"/v{n}", 1.0 + n)
        assert store_s(streams, f"/v{n + 1}", 1.0 + n) == 4.0 * (n + 1) - n
    assert store_s(streams, "/v3", 8.0) == 12.0 - 7.0
    assert store_s(streams, "/v3", 20.0) == 0.0  # it stands still
    streams.came("/v3", 21.0)
    assert store_s(streams, "/v4", 21.1) == 3.9


def test_what_precedes_segments_is_none_of_them() -> None:
    streams = ListedStreams()
    streams.read("v", PICTURES | {"/init": ListedSegment(0, 0.0)}, 0.0)
    found = streams.word("/init", 0.0)
    assert found is not None
    assert (found.kind, found.buffer_s) == ("i", None)
    streams.came("/v0", 0.0)
    streams.came("/init", 0.0)
    assert store_s(streams, "/v1", 0.0) == 4.0


def test_who_jumps_has_nothing() -> None:
    streams = ListedStreams()
    streams.read("v", PICTURES, 0.0)
    streams.came("/v0", 0.0)
    streams.came("/v1", 0.0)
    streams.came("/v1", 0.0)  # once more is no more
    assert store_s(streams, "/v2", 0.0) == 8.0
    assert store_s(streams, "/v7", 0.0) == 0.0


def test_sound_beside_pictures_is_not_counted_with_them() -> None:
    streams = ListedStreams()
    streams.read("v", PICTURES, 0.0)
    streams.read("a", SOUND, 0.1)
    for n in range(3):
        streams.came(f"/v{n}", 0.0)
    assert store_s(streams, "/v3", 0.0) == 12.0
    assert store_s(streams, "/a0", 0.0) == 0.0
    streams.came("/a0", 0.0)
    assert store_s(streams, "/a1", 0.0) == 4.0
    assert store_s(streams, "/v3", 0.0) == 12.0


def test_another_rendition_goes_on_with_the_store() -> None:
    streams = ListedStreams()
    streams.read("v", PICTURES, 0.0)
    for n in range(3):
        streams.came(f"/v{n}", 0.0)
    streams.read("w", SMALLER, 10.0)
    assert store_s(streams, "/w3", 2.0) == 10.0
    streams.came("/w3", 2.0)
    assert store_s(streams, "/v4", 2.0) == 14.0


def test_what_is_fetched_again_at_another_rate_replaces_what_follows() -> None:
    streams = ListedStreams()
    streams.read("v", PICTURES, 0.0)
    streams.read("w", SMALLER, 10.0)
    for n in range(5):
        streams.came(f"/v{n}", 0.0)
    assert store_s(streams, "/w2", 2.0) == 6.0  # /v0, which plays, and /v1
    streams.came("/w2", 2.0)
    assert store_s(streams, "/w3", 2.0) == 10.0
    for n in range(3, 6):
        streams.came(f"/w{n}", 2.0)
    assert store_s(streams, "/w6", 2.0) == 22.0


def test_who_begins_again_with_what_plays_may_have_nothing() -> None:
    for target, now in (("/w0", 2.0), ("/w1", 5.0), ("/v1", 2.0)):
        streams = ListedStreams()
        streams.read("v", PICTURES, 0.0)
        streams.read("w", SMALLER, 10.0)
        for n in range(5):
            streams.came(f"/v{n}", 0.0)
        assert store_s(streams, target, now) == 0.0


def test_of_a_listed_stream_that_is_played_faster_nothing_is_known() -> None:
    for every_s, known in ((4.0, True), (2.0, False)):
        streams = ListedStreams()
        streams.read("v", PICTURES, 0.0)
        for n in range(3):
            streams.came(f"/v{n}", 0.1 * n)
        for n in range(3, 6):
            found = streams.word(f"/v{n}", every_s * n)
            streams.came(f"/v{n}", every_s * n + 0.1)
        assert found is not None
        assert (found.buffer_s is not None) is known


def asked_when_full(*every_s: float) -> ListedStreams:
    """Segments of 4 s, asked for after such pauses; the last has not come."""
    streams = ListedStreams()
    streams.read("v", PICTURES, 0.0)
    for n in range(3):
        streams.came(f"/v{n}", 0.0)
    now = 0.0
    for n, pause_s in enumerate(every_s, 3):
        streams.came(f"/v{n - 1}", now + 0.1)
        now += pause_s
        streams.word(f"/v{n}", now)
    return streams


def test_who_looks_twice_a_second_asks_early_now_and_then() -> None:
    streams = asked_when_full(4.0, 4.02, 3.4)
    assert store_s(streams, "/v5", 11.5) > 0.0
    found = asked_when_full(4.0, 3.4, 4.5, 4.0, 3.5).word("/v7", 19.5)
    assert found is not None
    assert found.buffer_s is not None


def test_who_plays_a_fourth_faster_is_found_soon() -> None:
    streams = asked_when_full(4.0, 3.2, 3.2, 3.2)
    found = streams.word("/v6", 13.7)
    assert found is not None
    assert found.buffer_s is None


def test_who_asks_once_more_does_not_play_faster() -> None:
    streams = asked_when_full(4.0, 4.0)
    assert store_s(streams, "/v4", 9.0) > 0.0
    assert store_s(streams, "/v4", 9.1) > 0.0
