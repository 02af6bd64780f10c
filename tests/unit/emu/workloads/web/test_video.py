"""What the player tells about a video, in seconds of transfer, start and standstill."""

from pathlib import Path
from typing import Any

import pytest

from emu.workloads.web.video import Media, PlannedVideo, _watched, make

MEDIA = Media(Path("/nowhere"), (700_000, 2_000_000), 4.0, 5)
PLANNED = PlannedVideo(0, "v", 1.0, MEDIA, 5, None, 12.0, True)


def told(**changes: Any) -> dict[str, Any]:
    segments = [
        {"number": 1, "representation": 0, "started_s": 0.5, "ended_s": 1.5, "bytes": 350_000},
        {"number": 2, "representation": 1, "started_s": 1.5, "ended_s": 4.5, "bytes": 1_000_000},
    ]
    return {
        "begun_s": 0.3, "started_s": 1.6, "ended_s": 30.0, "segments": segments,
        "stalls": [{"started_s": 9.0, "ended_s": 11.5}], "problem": None, **changes,
    }  # fmt: skip


def test_a_video_that_was_played_to_its_end() -> None:
    seen = _watched(PLANNED, 50.0, 31.0, told())
    assert (seen.start_s, seen.stalls, seen.stall_s, seen.watched_s) == (1.6, 1, 2.5, 30.0)
    assert seen.transfer_s == pytest.approx(2.0)
    assert seen.bitrate_bps == pytest.approx(1_350_000)
    assert seen.received_bytes == 1_350_000
    assert not seen.censored


def test_what_was_cut_off_counts_as_far_as_it_came() -> None:
    account = told(ended_s=None, stalls=[{"started_s": 12.0, "ended_s": None}])
    account["segments"][1] |= {"ended_s": None, "bytes": 0}
    seen = _watched(PLANNED, 50.0, 20.0, account)
    assert seen.censored
    assert seen.stall_s == pytest.approx(8.0)
    assert seen.transfer_s == pytest.approx((1.0 + 18.5) / 2)
    assert seen.bitrate_bps == 700_000
    assert seen.segment_bytes == pytest.approx((350_000 + 1_000_000) / 2)


def test_a_player_that_never_came() -> None:
    seen = _watched(PLANNED, 50.0, 20.0, None)
    assert (seen.censored, seen.start_s, seen.transfer_s) == (True, 20.0, 20.0)
    assert seen.problem == "the player did not come"


def test_a_first_picture_that_never_came() -> None:
    seen = _watched(PLANNED, 50.0, 20.0, told(started_s=None, ended_s=None, stalls=[]))
    assert seen.start_s == 20.0


def test_media_hold_their_rates_and_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEDOS_EMU_CACHE_DIR", str(tmp_path))
    media = make((300_000, 900_000), duration_s=6, segment_s=2)
    assert media.segments == 3
    for number, rate_bps in enumerate(media.bitrates_bps):
        assert media.size_bytes(number) * 8 / 6 == pytest.approx(rate_bps, rel=0.15)
    before = (media.folder / "0-1.m4s").stat().st_mtime_ns
    assert make((300_000, 900_000), duration_s=6, segment_s=2) == media
    assert (media.folder / "0-1.m4s").stat().st_mtime_ns == before
    assert [file.name for file in tmp_path.iterdir()] == [media.folder.name]
