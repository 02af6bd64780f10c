"""Media playlists of HLS, as far as they say how long what plays."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.proxy.local.players import manifest
from cedos.proxy.local.players.players import PLAYLIST_TYPES, Asked
from cedos.proxy.local.players.playlist import LONGEST, ListedSegment, parse

URL = "http://video.example/films/a/list.m3u8?t=1"
MEDIA = b"""#EXTM3U
#EXT-X-VERSION:3
#EXT-X-TARGETDURATION:6
#EXT-X-MEDIA-SEQUENCE:7
#EXTINF:6.006,
s7.ts
#EXTINF:5.5,a title, with a comma
#EXT-X-PROGRAM-DATE-TIME:2026-11-25T00:00:00Z
../b/s8.ts?key=1

#EXTINF:4,
http://elsewhere.example/s9.ts
#EXTINF:3,
/s10.ts
#EXT-X-ENDLIST
"""


def test_segments_have_their_places_and_durations() -> None:
    assert parse(URL, MEDIA) == {
        "/films/a/s7.ts": ListedSegment(7, 6.006),
        "/films/b/s8.ts?key=1": ListedSegment(8, 5.5),
        "/s10.ts": ListedSegment(10, 3.0),
    }
    assert parse(URL, MEDIA.replace(b"\n", b"\r\n")) == parse(URL, MEDIA)


@pytest.mark.parametrize("target", [b"/play?id=1", b"/list.m3u8", b"/all.mpd"])
@pytest.mark.parametrize(
    "content_type",
    [
        b"application/vnd.apple.mpegurl",
        b"application/x-mpegurl",
        b"audio/mpegurl",
        b"audio/x-mpegurl",
    ],
)
def test_its_content_types_tell_it_whatever_its_address(target: bytes, content_type: bytes) -> None:
    assert content_type in PLAYLIST_TYPES
    assert Asked("a.test", target, ()).parser(content_type) is parse
    assert Asked("a.test", target, (), bodiless=True).parser(content_type) is None


def test_what_precedes_segments_plays_nothing() -> None:
    first = b'#EXT-X-MAP:URI="init.mp4"\n'
    found = parse(URL, MEDIA.replace(b"#EXTINF:6.006", first + b"#EXTINF:6.006"))
    assert found is not None
    assert found == (parse(URL, MEDIA) or {}) | {"/films/a/init.mp4": ListedSegment(7, 0.0)}
    for line in (
        b'#EXT-X-MAP:BYTERANGE="720@0",URI="init.mp4",X-A=1',
        b'#EXT-X-MAP:URI="http://video.example/films/a/init.mp4"',
    ):
        assert parse(URL, MEDIA + line + b"\n") is not None
        assert "/films/a/init.mp4" in (parse(URL, MEDIA + line + b"\n") or {})
    for line in (b"#EXT-X-MAP:", b'#EXT-X-MAP:URI="http://other.example/i"', b'#EXT-X-MAP:URI=""'):
        assert parse(URL, MEDIA + line + b"\n") == parse(URL, MEDIA)
    same = parse(URL, MEDIA + b'#EXT-X-MAP:URI="s7.ts"\n')
    assert same == parse(URL, MEDIA)  # a segment, too
    assert parse(URL, b"#EXTM3U\n#EXT-X-TARGETDURATION:6\n" + first) is None
    assert parse(URL, MEDIA + first * 20_001) is None


def test_without_its_content_types_its_address_tells_it() -> None:
    for content_type in (b"", b"text/plain", b"video/mp4"):
        assert Asked("a.test", b"/A.M3U8?x", ()).parser(content_type) is parse
        assert Asked("a.test", b"/a.mpd", ()).parser(content_type) is manifest.parse
        assert Asked("a.test", b"/a.ts?b.m3u8", ()).parser(content_type) is None


def test_what_is_none() -> None:
    variants = b"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=640000\nlow/list.m3u8\n"
    assert parse(URL, variants) is None
    assert parse(URL, MEDIA.replace(b"#EXTM3U", b"#EXTM3V")) is None
    assert parse(URL, MEDIA.replace(b"5.5", b"-5.5")) is None
    assert parse(URL, MEDIA.replace(b"5.5", b"0")) is None
    assert parse(URL, MEDIA + b"#EXT-X-BYTERANGE:5@0\n") is None
    assert parse(URL, MEDIA + b"\xff") is None
    assert parse(URL, MEDIA + b"#EXTINF:1,\na\n" * 20_001) is None
    assert parse(URL, b"#EXTM3U\n#EXTINF:215,A song\nsongs/a.mp3\n") is None
    assert parse(URL, MEDIA.replace(b"#EXT-X-TARGETDURATION:6\n", b"")) is None
    assert parse(URL, b"") is None
    assert parse(URL, MEDIA + b"#\n" * 149_000) == parse(URL, MEDIA)
    assert parse(URL, MEDIA + b"#\n" * 150_000) is None
    assert parse("http://video.example/" + "a/" * 60, MEDIA) is not None
    assert parse("http://video.example/" + "a/" * 70, MEDIA) is None
    assert parse("http://video.example/" + "a" * 2_100, MEDIA) is None


HEAD = "#EXTM3U\n#EXT-X-TARGETDURATION:6\n"
DEEP = "http://a.test/" + f"{'d' * 24}/" * 57 + "l.m3u8"


@pytest.mark.parametrize(
    ("url", "listed", "then"),
    [
        (DEEP, "s%d", "a/"),
        (DEEP, "s%d/a/b/c/d/e/f/g/h", ""),
        ("http://a.test/" + "d" * 1_600, "s%d", "#\n"),
        (DEEP, "../s%d", "#EXTINF:1\n"),
        (DEEP, ".s%d", "#\n"),
        (DEEP, "s%d#", "a/"),
        (URL, ".s%d", "#\n"),
        (URL, "%d", "\n"),
        (URL + "q" * 60_000, ";", ""),
        (URL, "s%d", '#EXT-X-MAP:URI="\n'),
        (URL, "s%d", '#EXT-X-MAP:,URI=",\n'),
    ],
)
def test_what_is_made_to_take_time_takes_little(
    url: str, listed: str, then: str, over_library: Callable[[Callable[[], object]], float]
) -> None:
    """Many addresses, and the rest of it what else takes time."""
    segments = [
        f"#EXTINF:1,\n{listed % each if '%' in listed else listed}" for each in range(20_000)
    ]
    text = HEAD + "\n".join(segments) + "\n"
    body = (text + then * ((LONGEST - len(text)) // len(then) if then else 0)).encode()
    assert len(body) <= LONGEST
    assert over_library(lambda: parse(url, body)) < 1.2


@given(
    st.lists(
        st.sampled_from(
            [
                *MEDIA.split(b"\n"),
                b'#EXT-X-MAP:URI="a"',
                b"http://[x/",
                b"\xef\xbb\xbf",
                b"a" * 3000,
            ]
        )
    )
)
def test_any_lines_may_come(lines: list[bytes]) -> None:
    found = parse(URL, HEAD.encode() + b"\n".join(lines))
    assert found is None or all(each.duration_s >= 0 for each in found.values())


def test_what_is_kept_of_long_addresses_is_bounded() -> None:
    base = "http://a.test/" + "d" * 1_000 + "/"
    for count, known in ((4_000, True), (5_000, False)):
        text = HEAD + "".join(f"#EXTINF:1,\n{each}\n" for each in range(count))
        assert (parse(base + "l.m3u8", text.encode()) is not None) is known
