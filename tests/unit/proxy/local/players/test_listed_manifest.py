"""A player that reads a DASH manifest and says nothing: what it has in store."""

from cedos.proxy.local.players import manifest
from cedos.proxy.local.players.listed_stream import ListedStreams

URL = "http://video.example/film/all.mpd"


def film(*periods: str, more: str = 'mediaPresentationDuration="PT60S"') -> bytes:
    return f'<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" {more}>{"".join(periods)}</MPD>'.encode()


def group(kind: str, length: str, *names: str, times: str = "") -> str:
    media = "$RepresentationID$$Time$" if times else "$RepresentationID$$Number$"
    told = f"<SegmentTimeline>{times}</SegmentTimeline>"
    template = f'<SegmentTemplate timescale="10" {length} media="/{media}">{told if times else ""}'
    lists = "".join(f'<Representation id="{name}"/>' for name in names)
    return (
        f'<AdaptationSet contentType="{kind}">{template}</SegmentTemplate>{lists}</AdaptationSet>'
    )


def streams(body: bytes) -> ListedStreams:
    made = ListedStreams()
    again(made, body, 0.0)
    return made


def again(read: ListedStreams, body: bytes, now: float) -> None:
    listed = manifest.parse(URL, body)
    assert listed is not None
    read.read(URL, listed, now)


def store_s(read: ListedStreams, target: str, now: float) -> float:
    found = read.word(target, now)
    assert found is not None
    assert found.buffer_s is not None
    return round(found.buffer_s, 3)


PICTURES = group("video", 'duration="40"', "v", "w")
SOUND = group("audio", 'duration="30"', "a", "b")
FILM = film(f"<Period>{PICTURES}{SOUND}</Period>")


def test_what_came_and_cannot_have_been_played_is_in_store() -> None:
    read = streams(FILM)
    assert read.word("/init", 0.0) is None
    assert store_s(read, "/v1", 0.0) == 0.0
    for n in range(1, 4):
        read.came(f"/v{n}", float(n))
        assert store_s(read, f"/v{n + 1}", float(n)) == 4.0 * n - (n - 1)
    read.came("/v3", 3.0)  # once more is no more
    assert store_s(read, "/v4", 8.0) == 12.0 - 7.0
    assert store_s(read, "/v9", 8.0) == 0.0  # it jumped


def test_sound_and_pictures_have_stores_of_their_own() -> None:
    read = streams(FILM)
    for n in range(1, 4):
        read.came(f"/v{n}", 0.0)
        read.came(f"/a{n}", 0.0)
    assert store_s(read, "/v4", 0.0) == 12.0
    assert store_s(read, "/a4", 0.0) == 9.0
    words = [read.word(target, 0.0) for target in ("/v4", "/a4")]
    assert [each.kind for each in words if each] == [f"{URL}#video/v", f"{URL}#audio/a"]
    assert [each.duration_s for each in words if each] == [4.0, 3.0]


def test_another_representation_goes_on_with_the_store() -> None:
    read = streams(FILM)
    for n in range(1, 4):
        read.came(f"/v{n}", 0.0)
    assert store_s(read, "/w4", 2.0) == 10.0
    read.came("/w4", 2.0)
    assert store_s(read, "/v4", 2.0) == 14.0  # the same once more, smaller, adds nothing
    read.came("/v4", 2.0)
    assert store_s(read, "/v5", 2.0) == 14.0
    assert store_s(read, "/b4", 2.0) == 0.0  # sound does not go on with pictures


def test_representations_that_are_cut_otherwise_go_on_too() -> None:
    uneven = group("video", "", "x", times='<S d="41"/><S d="39" r="1"/><S d="42" r="9"/>')
    read = streams(film(f"<Period>{PICTURES}{uneven}</Period>"))
    read.came("/v1", 0.0)
    assert store_s(read, "/x41", 0.0) == 4.0
    read.came("/x41", 0.0)
    assert store_s(read, "/v3", 0.0) == 7.9


def test_the_next_period_goes_on_with_the_store() -> None:
    first, second = (
        group("video", 'duration="40"', "v"),
        group("video", 'duration="20"', "advert"),
    )
    film_then = film(
        f'<Period duration="PT10S">{first}</Period>',
        f'<Period duration="PT30S">{second}</Period>',
    )
    read = streams(film_then)
    for n in range(1, 4):
        read.came(f"/v{n}", 0.0)
    assert store_s(read, "/advert1", 0.0) == 10.0
    read.came("/advert1", 0.0)
    assert store_s(read, "/advert2", 0.0) == 12.0
    assert store_s(read, "/advert4", 0.0) == 0.0


def test_a_live_manifest_comes_again_and_the_store_stays() -> None:
    def live(first: int) -> bytes:
        times = f'<S t="{20 * first}" d="20" r="4"/>'
        inside = group("video", "", "v", times=times)
        return film(f'<Period start="PT5S">{inside}</Period>', more='type="dynamic"')

    read = streams(live(50))
    for n in (52, 53, 54):
        read.came(f"/v{20 * n}", 0.0)
    again(read, live(52), 1.0)
    assert store_s(read, f"/v{20 * 55}", 1.0) == 5.0
    read.came(f"/v{20 * 55}", 1.0)
    again(read, live(60), 2.0)  # nothing of before is listed any more
    assert store_s(read, f"/v{20 * 60}", 2.0) == 0.0


def test_manifests_that_are_forgotten_leave_nothing_behind() -> None:
    read = ListedStreams()
    for number in range(50):
        listed = manifest.parse(URL, FILM.replace(b'"/$', b'"/%d/$' % number))
        assert listed is not None
        read.read(f"{URL}?{number}", listed, float(number))
        read.came(f"/{number}/v1", float(number))
        read.came(f"/{number}/a1", float(number))
    assert len(read._lists) == len(read._read_s) == len(read._begun) == 16
    assert len(read._runs) <= 32
    assert read.word("/49/v2", 49.0) is not None
    assert read.word("/0/v1", 49.0) is None
