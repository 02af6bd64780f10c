"""Manifests of DASH, as far as they say what plays when."""

from collections.abc import Callable
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.proxy.local.players.manifest import Manifest, parse
from cedos.proxy.local.players.playlist import LONGEST, ListedSegment

URL = "http://video.example/films/a/all.mpd?t=1"
NAMESPACE = "urn:mpeg:dash:schema:mpd:2011"


def mpd(inside: str, more: str = 'mediaPresentationDuration="PT9S"') -> bytes:
    return f'<?xml version="1.0"?><MPD xmlns="{NAMESPACE}" {more}>{inside}</MPD>'.encode()


def one(inside: str, more: str = 'mediaPresentationDuration="PT9S"') -> bytes:
    """Of one representation."""
    group = f'<AdaptationSet contentType="video">{inside}<Representation id="v"/></AdaptationSet>'
    return mpd(f"<Period>{group}</Period>", more)


def read(body: bytes) -> Manifest:
    found = parse(URL, body)
    assert found is not None
    return found


def placed(found: Manifest, *targets: str) -> list[tuple[float, float] | None]:
    """When each begins, and for how long it plays."""
    segments = [found.get(target) for target in targets]
    return [None if each is None else (each.number, each.duration_s) for each in segments]


FILM = mpd(
    """
  <BaseURL> media/ </BaseURL>
  <Period id="only">
    <AdaptationSet mimeType="video/mp4" segmentAlignment="true">
      <ContentProtection schemeIdUri="urn:x"><x:pssh xmlns:x="urn:y">AAAA</x:pssh></ContentProtection>
      <SegmentTemplate timescale="1000" duration="4000" startNumber="5"
        media="$RepresentationID$-$Bandwidth%06d$/s$Number%03d$.m4s?a=1&amp;b=$$"
        initialization="$RepresentationID$/init.mp4"/>
      <Representation id="low" bandwidth="250000"/>
      <Representation id="high" bandwidth="3000000"><BaseURL>../big/</BaseURL></Representation>
    </AdaptationSet>
    <AdaptationSet contentType="audio" lang="en">
      <Representation id="en" bandwidth="64000">
        <SegmentTemplate timescale="48000" media="$RepresentationID$/$Time$.m4s"
          presentationTimeOffset="480000">
          <SegmentTimeline><S t="480000" d="96000" r="2"/><S d="48000" r="-1"/></SegmentTimeline>
        </SegmentTemplate>
      </Representation>
    </AdaptationSet>
  </Period>
"""
)


def test_segments_by_numbers_and_by_times() -> None:
    found = read(FILM)
    low = "/films/a/media/low-250000/s%03d.m4s?a=1&b=$"
    assert found.get(low % 5) == ListedSegment(0.0, 4.0, 4.0, "video/low", "video")
    assert placed(found, *(low % n for n in (4, 6, 7, 8))) == [None, (4.0, 4.0), (8.0, 1.0), None]
    high = found.get("/films/a/big/high-3000000/s006.m4s?a=1&b=$")
    assert high == ListedSegment(4.0, 4.0, 4.0, "video/high", "video")
    sound = "/films/a/media/en/%d.m4s"
    times = (480_000, 576_000, 672_000, 768_000, 816_000, 864_000, 912_000)
    assert placed(found, *(sound % each for each in times)) == [
        *((0.0, 2.0), (2.0, 2.0), (4.0, 2.0), (6.0, 1.0), (7.0, 1.0), (8.0, 1.0), None)
    ]
    assert found.get(sound % 480_000) == ListedSegment(0.0, 2.0, 2.0, "audio/en", "audio")
    first = ListedSegment(0.0, 0.0, 0.0, "video/low", "video")
    assert found.get("/films/a/media/low/init.mp4") == first
    assert found.get("/films/a/big/high/init.mp4") is not None
    others = ("/films/a/media/en/init.mp4", low % 6 + "1", "/films/a/media/en/480001.m4s", "", "/")
    assert placed(found, *others, low.replace("%03d", "6")) == [None] * 6


def test_a_timeline_with_numbers() -> None:
    found = read(
        one(
            '<SegmentTemplate timescale="10" startNumber="7" media="$Number$.m4s"><SegmentTimeline>'
            '<S d="20" r="1"/><S t="50" d="15"/><S d="5"/></SegmentTimeline></SegmentTemplate>'
        )
    )
    targets = [f"/films/a/{n}.m4s" for n in range(6, 12)]
    assert placed(found, *targets) == [None, (0.0, 2.0), (2.0, 2.0), (5.0, 1.5), (6.5, 0.5), None]


def test_a_timeline_that_repeats_up_to_the_next() -> None:
    found = read(
        one(
            '<SegmentTemplate media="$Time$"><SegmentTimeline><S d="2" r="-1"/><S t="5" d="3" r="-1"/>'
            "</SegmentTimeline></SegmentTemplate>"
        )
    )
    targets = [f"/films/a/{n}" for n in (0, 2, 4, 5, 6, 8, 11)]
    wanted = [(0.0, 2.0), (2.0, 2.0), (4.0, 2.0), (5.0, 3.0), None, (8.0, 1.0), None]
    assert placed(found, *targets) == wanted


def test_segments_that_are_written_out() -> None:
    found = read(
        one(
            '<SegmentList timescale="1000" duration="4000"><Initialization sourceURL="i.mp4"/>'
            '<SegmentURL media="x$1.m4s"/><SegmentURL media="/y.m4s?z=1"/><SegmentURL media="../z"/>'
            "</SegmentList>"
        )
    )
    assert placed(found, "/films/a/x$1.m4s", "/y.m4s?z=1", "/films/z", "/films/a/i.mp4") == [
        *((0.0, 4.0), (4.0, 4.0), (8.0, 1.0), (0.0, 0.0))
    ]
    timed = read(
        one(
            "<SegmentList><SegmentTimeline><S t='3' d='2' r='1'/></SegmentTimeline>"
            "<SegmentURL media='a'/><SegmentURL media='b'/><SegmentURL media='c'/></SegmentList>",
            'type="dynamic" mediaPresentationDuration="PT0H0M30.5S"',
        ).replace(b"<Period", b'<Period start="PT1M"')
    )
    assert placed(timed, "/films/a/a", "/films/a/b", "/films/a/c") == [None] * 3  # behind the end
    # What a list without times says of a live stream changes each time.
    written = b'<SegmentList duration="2"><SegmentURL media="a"/></SegmentList>'
    assert parse(URL, one(written.decode())) is not None
    assert parse(URL, one(written.decode(), 'type="dynamic"')) is None


def test_a_live_stream_without_an_end() -> None:
    live = mpd(
        '<Period id="1" start="PT100S"><AdaptationSet mimeType="video/mp4">'
        '<SegmentTemplate timescale="2" duration="4" media="$Number$.m4s"/><Representation id="a"/>'
        "</AdaptationSet></Period>",
        'type="dynamic" availabilityStartTime="1970-01-01T00:00:00Z" minimumUpdatePeriod="PT2S"',
    )
    assert placed(read(live), "/films/a/1.m4s", "/films/a/900000001.m4s", "/films/a/0.m4s") == [
        *((100.0, 2.0), (1_800_000_100.0, 2.0), None)
    ]
    # When a live period begins has to be said.
    assert parse(URL, live.replace(b' start="PT100S"', b"")) is None


def test_the_window_of_a_live_timeline_moves_and_its_segments_stay() -> None:
    def live(first: int) -> Manifest:
        return read(
            one(
                f'<SegmentTemplate timescale="10" startNumber="{first}" media="$Number$">'
                f'<SegmentTimeline><S t="{20 * first}" d="20" r="4"/></SegmentTimeline>'
                "</SegmentTemplate>",
                'type="dynamic"',
            ).replace(b"<Period", b'<Period start="PT0S"')
        )

    assert live(7).get("/films/a/9") == live(9).get("/films/a/9") is not None
    assert live(10).get("/films/a/9") is None


def test_periods_come_one_after_another() -> None:
    group = (
        '<AdaptationSet contentType="video"><SegmentTemplate duration="4" media="$Number$.m4s"/>'
        '<Representation id="v"/></AdaptationSet>'
    )
    found = read(
        mpd(
            f'<Period duration="PT10S"><BaseURL>one/</BaseURL>{group}</Period>'
            f"<Period><BaseURL>two/</BaseURL>{group}</Period>"
            f'<Period start="PT0H0M15.5S"><BaseURL>three/</BaseURL>{group}</Period>'
            f'<Period start="PT20S" xmlns:l="urn:l" l:href="four.xml">{group}</Period>',
            'mediaPresentationDuration="P0Y0M0DT0H1M0S"',
        )
    )
    targets = [
        f"/films/a/{n}.m4s" for n in ("one/3", "one/4", "two/1", "two/2", "three/1", "three/2")
    ]
    assert placed(found, *targets) == [
        *((8.0, 2.0), None, (10.0, 4.0), (14.0, 1.5), (15.5, 4.0), (19.5, 0.5))
    ]
    assert found.get("/films/a/1.m4s") is None  # of the fourth is nothing here


TEMPLATE = '<SegmentTemplate duration="2" media="%s"/>'


@pytest.mark.parametrize(
    "inside",
    [
        "",
        "<SegmentBase indexRange='0-100'/>",
        "<BaseURL>all.mp4</BaseURL>",
        "<SegmentList duration='2'><SegmentURL mediaRange='0-99'/></SegmentList>",
        "<SegmentList duration='2'><SegmentURL media='a' mediaRange='0-99'/></SegmentList>",
        "<SegmentList duration='2' xmlns:xlink='urn:l' xlink:href='list.xml'/>",
        "<SegmentTemplate duration='2'/>",
        "<SegmentTemplate media='$Number$'/>",
        "<SegmentTemplate duration='2' timescale='0' media='$Number$'/>",
        "<SegmentTemplate duration='0' media='$Number$'/>",
        "<SegmentTemplate duration='-2' media='$Number$'/>",
        "<SegmentTemplate duration='601' media='$Number$'/>",
        "<SegmentTemplate duration='2' startNumber='x' media='$Number$'/>",
        "<SegmentTemplate duration='2' media='$Time$'/>",
        *(
            TEMPLATE % media
            for media in (
                *("a", "$Number", "$Other$", "$SubNumber$", "$Number%5d$", "$Number%00d$"),
                *("$Number%99d$", "$Number%d$", "$Number$$Time$", "$Bandwidth$/$Number$"),
                *("http://elsewhere.example/$Number$", "//[x/$Number$", "$Number$" + "a" * 2_048),
            )
        ),
        *(
            f"<SegmentTemplate media='$Time$'><SegmentTimeline>{entries}</SegmentTimeline>"
            "</SegmentTemplate>"
            for entries in (
                *(
                    "",
                    "<S/>",
                    "<S d='0'/>",
                    "<S d='601'/>",
                    "<S d='2' r='-2'/>",
                    "<S d='2' r='x'/>",
                ),
                *("<S t='5' d='2'/><S t='4' d='2'/>", "<S d='2' r='9'/><S t='3' d='2'/>"),
                *("<S d='2' r='-1'/><S d='3'/>", "<S t='3' d='2' r='-1'/><S t='3' d='3'/>"),
                *("<S d='2' k='4'/>", "<S d='2' n='4'/>", "<S d='2'" + " t='1' t='1'/>"),
                f"<S d='{'9' * 21}'/>",
            )
        ),
    ],
)
def test_representations_that_are_left_out(inside: str) -> None:
    assert parse(URL, one(inside)) is None
    if "t='1' t='1'" in inside:  # that is no XML
        return
    template = TEMPLATE % "b/$Number$"
    beside = f'<AdaptationSet>{template}<Representation id="b"/></AdaptationSet></Period>'
    both = one(inside).replace(b"</Period>", beside.encode())
    assert placed(read(both), "/films/a/b/2") == [(2.0, 2.0)]


def test_the_lower_level_wins() -> None:
    inside = TEMPLATE % "above/$Number$"
    lower = '<SegmentTemplate media="own/$Number$"/>'
    body = one(inside).replace(b'id="v"/>', f'id="v">{lower}</Representation>'.encode())
    assert placed(read(body), "/films/a/own/2", "/films/a/above/2") == [(2.0, 2.0), None]
    ranges = one(inside).replace(b'id="v"/>', b'id="v"><SegmentBase/></Representation>')
    assert parse(URL, ranges) is None


def test_what_is_none() -> None:
    right = one(TEMPLATE % "$Number$")
    assert parse(URL, right) is not None
    assert (
        parse(URL, right.replace(NAMESPACE.encode(), b"urn:mpeg:DASH:schema:MPD:2011")) is not None
    )
    for wrong in (
        *(b"", b"#EXTM3U\n#EXTINF:1,\na\n", b"<MPD/>", b"<rss/>", right[:-1], right + b"<a/>"),
        *(right.replace(NAMESPACE.encode(), b"urn:other"), right.replace(b"MPD", b"MPE")),
        *(
            right.replace(b"PT9S", each)
            for each in (b"9", b"P", b"PT", b"-PT9S", b"PT9", b"PT%dS" % 10**20)
        ),
        right.replace(b'id="v"', b""),
        right.replace(b'id="v"', b'id="%s"' % (b"v" * 129)),
        right.replace(b"<Period>", b"<Period><BaseURL>http://[x/</BaseURL>"),
        right.replace(b"<Period>", b"<Period><BaseURL>http://elsewhere.example/</BaseURL>"),
        right.replace(b"<Period>", b"<Period><BaseURL>" + b"a" * 2_049 + b"</BaseURL>"),
        right.replace(b"<Period>", b'<Period xmlns="urn:other">'),
    ):
        assert parse(URL, wrong) is None, wrong[:300]
    assert parse("http://[x/a.mpd", right) is None


def test_there_are_bounds() -> None:
    many = '<Representation id="%d"/>' * 1_000 % tuple(range(1_000))
    body = one(TEMPLATE % "$RepresentationID$/$Number$" + many)
    assert parse(URL, body) is None  # one too many
    body = body.replace(b'<Representation id="v"/>', b"")
    assert placed(read(body), "/films/a/999/2") == [(2.0, 2.0)]
    deep = "http://video.example/" + "a/" * 70
    right = one(TEMPLATE % "$Number$")
    assert parse(deep, right) is None
    assert (
        parse(
            URL,
            right.replace(
                b'id="v"/>', b'id="v"><BaseURL>%s</BaseURL></Representation>' % deep.encode()
            ),
        )
        is None
    )
    assert parse(URL, one(TEMPLATE % ("../" * 70 + "$Number$"))) is None
    written = '<SegmentList duration="2">' + '<SegmentURL media="a"/>' * 100 + "</SegmentList>"
    assert parse(URL, one(written)) is not None
    assert parse(URL, one(written + many[: 201 * 24])) is None
    for empty in ("<Period start='PT0S'/>", "<Period start='PT0S'><AdaptationSet/></Period>"):
        full = [
            right.replace(b"<Period>", empty.encode() * each + b"<Period start='PT0S'>")
            for each in (999, 1_000)
        ]
        assert [parse(URL, each) is None for each in full] == [False, True]
    sets = [
        right.replace(b"<Period>", b"<Period>" + b"<AdaptationSet/>" * each)
        for each in (999, 1_000)
    ]
    assert [parse(URL, each) is None for each in sets] == [False, True]
    signs = [one(TEMPLATE % ("$$" * each + "$Number$")) for each in (15, 16)]
    assert [parse(URL, each) is None for each in signs] == [False, True]


DEEP = "http://a.test/" + f"{'d' * 24}/" * 57 + "l.mpd"
TIMES = "".join(f'<S t="{3 * each}" d="1" r="-1"/>' for each in range(26_000))
TIMELINE = (
    f"<SegmentTemplate media='{{}}'><SegmentTimeline>{TIMES}</SegmentTimeline></SegmentTemplate>"
)
MANY = '<Representation id="%d"/>' * 999 % tuple(range(999))
ADDRESSES = "".join(f'<SegmentURL media="{{}}{each}"/>' for each in range(20_000))
LIST = f'<SegmentList duration="2">{ADDRESSES}</SegmentList>'
FEW = '<SegmentList duration="2">' + '<SegmentURL media="../a"/>' * 20 + "</SegmentList>"


@pytest.mark.parametrize(
    "inside",
    [
        LIST.replace("{}", "s") + "<a/>" * 29_000,
        LIST.replace("{}", "../s") + "<a/>" * 29_000,
        LIST.replace("{}", ".s") + "<a/>" * 29_000,
        TIMELINE.format("$Time$/" * 12 + "x" * 300) + MANY + "<a/>" * 29_000,
        FEW + MANY + "<a/>" * 29_000,
        (TEMPLATE % "$Number$") + MANY.replace("/>", "><BaseURL>.a/</BaseURL></Representation>"),
        (TEMPLATE % ("$$" * 1_000 + "$Number$")) + MANY,
        "<a/>" * 240_000,
        "<a><b/></a>" * 90_000,
    ],
)
def test_what_is_made_to_take_time_takes_little(
    inside: str, over_library: Callable[[Callable[[], object]], float]
) -> None:
    body = one(inside)
    assert len(body) <= LONGEST
    assert over_library(lambda: parse(DEEP, body)) < 1.2


def test_dollars_in_addresses_are_no_templates() -> None:
    body = one(TEMPLATE % "$RepresentationID$/$Number$").replace(b'"v"', b'"$Number$"')
    found = parse("http://video.example/$Time$/all.mpd", body)
    assert found is not None
    assert placed(found, "/$Time$/$Number$/2", "/$Time$/2/2") == [(2.0, 2.0), None]


@dataclass(frozen=True)
class Listed:
    """A representation as a generator writes it: `lengths` in s."""

    name: str
    way: str
    timescale: int
    lengths: list[int]
    first: int
    offset: int


NAMES = st.text("abcXYZ019-_.$", min_size=1, max_size=6).filter(lambda name: name.strip("."))
LISTED = st.builds(
    Listed,
    NAMES,
    st.sampled_from(["numbers", "equal", "times", "written"]),
    st.integers(1, 100_000),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(0, 10**6),
    st.integers(0, 10**9),
)


def written(listed: Listed) -> tuple[str, list[str]]:
    """It, and where its segments are."""
    lengths = [length * listed.timescale for length in listed.lengths]
    entries, times, time = [], [], listed.offset
    for length in lengths:
        entries.append(f'<S t="{time}" d="{length}"/>')
        times.append(time)
        time += length
    timeline = f"<SegmentTimeline>{''.join(entries)}</SegmentTimeline>"
    told = f'timescale="{listed.timescale}" presentationTimeOffset="{listed.offset}"'
    numbers = [listed.first + place for place in range(len(lengths))]
    match listed.way:
        case "equal":
            told = f'timescale="{listed.timescale}" duration="{lengths[0]}" startNumber="{listed.first}"'
            way = f'<SegmentTemplate {told} media="$RepresentationID$/$Number%04d$.m4s"/>'
            names = [f"{number:04d}.m4s" for number in numbers]
        case "numbers":
            told += (
                f' startNumber="{listed.first}" media="$RepresentationID$/$Number$_$Number%02d$"'
            )
            way = f"<SegmentTemplate {told}>{timeline}</SegmentTemplate>"
            names = [f"{number}_{number:02d}" for number in numbers]
        case "times":
            told += ' media="$RepresentationID$/$Time$0.m4s"'
            way = f"<SegmentTemplate {told}>{timeline}</SegmentTemplate>"
            names = [f"{each}0.m4s" for each in times]
        case _:
            names = [f"s{place}" for place in range(len(lengths))]
            urls = "".join(
                f"<SegmentURL media={quoteattr(f'{listed.name}/{each}')}/>" for each in names
            )
            way = f"<SegmentList {told}>{timeline}{urls}</SegmentList>"
    representation = f"<Representation id={quoteattr(listed.name)}>{way}</Representation>"
    return representation, [f"{listed.name}/{each}" for each in names]


@given(st.lists(st.lists(LISTED, min_size=1, max_size=3), min_size=1, max_size=3), st.booleans())
def test_what_is_written_is_read_back(periods: list[list[Listed]], live: bool) -> None:
    inside, wanted, start_s = "", {}, 50 if live else 0
    for number, group in enumerate(periods):
        inside += f'<Period start="PT{start_s}S"><BaseURL>p{number}/</BaseURL>'
        for place, listed in enumerate(group):
            text, names = written(listed)
            inside += f'<AdaptationSet contentType="k{place}"><BaseURL>g{place}/</BaseURL>'
            inside += f"{text}</AdaptationSet>"
            began_s = start_s
            lengths = listed.lengths[:1] * len(names) if listed.way == "equal" else listed.lengths
            for name, length in zip(names, lengths, strict=True):
                wanted[f"/films/a/p{number}/g{place}/{name}"] = (began_s, length)
                began_s += length
        inside += "</Period>"
        start_s += 100
    found = parse(URL, mpd(inside, 'type="dynamic"' if live else ""))
    assert found is not None
    for target, segment in wanted.items():
        assert placed(found, target) == [pytest.approx(segment)], target
        assert placed(found, target + "0", target[1:]) == [None, None]


PIECES = [
    *FILM.decode().split("\n"),
    *(
        '<S d="1" r="1000000000"/>',
        '<S t="1" d="99999999999999999999"/>',
        "</S>",
        "<S",
        ">",
        "<![CDATA[",
        "]]>",
    ),
    *(
        "<!-- ",
        "-->",
        "<!DOCTYPE MPD>",
        "&a;",
        "&#0;",
        "\0",
        "\ufeff",
        "http://[x/",
        "a" * 3_000,
        "<MPD>",
    ),
    *(
        "</AdaptationSet>",
        "</Period>",
        "</MPD>",
        "<Representation id='a'/>",
        "<BaseURL>//[</BaseURL>",
    ),
]


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(PIECES)),
    st.text(max_size=5),
    st.sampled_from(["utf-8", "utf-16", "latin-1"]),
)
def test_any_pieces_may_come(pieces: list[str], target: str, code: str) -> None:
    body = mpd("".join(pieces)).decode().encode(code, "replace")
    found = parse(URL, body)
    for each in (
        target,
        "/films/a/media/low-250000/s006.m4s?a=1&b=$",
        "/films/a/media/en/480000.m4s",
    ):
        if found is not None and (segment := found.get(each)) is not None:
            assert 0 < segment.duration_s <= 600


@given(st.integers(0, len(FILM) - 1), st.binary(max_size=3))
def test_what_is_cut_or_spoilt(at: int, inserted: bytes) -> None:
    assert parse(URL, FILM[:at]) is None
    found = parse(URL, FILM[:at] + inserted + FILM[at + 1 :])
    assert found is None or isinstance(found, Manifest)


def test_what_is_kept_of_long_addresses_is_bounded() -> None:
    base = "http://a.test/" + "d" * 1_000 + "/"
    for count, known in ((4_000, True), (5_000, False)):
        urls = "".join(f'<SegmentURL media="{each}"/>' for each in range(count))
        found = parse(base + "l.mpd", one(f'<SegmentList duration="2">{urls}</SegmentList>'))
        assert (found is not None) is known
