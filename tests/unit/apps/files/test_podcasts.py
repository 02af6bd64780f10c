"""Podcasts: feeds as publishers write them, and episodes that come by their deadlines."""

import asyncio
import errno
import json
import os
import re
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.odd_web_server import AUDIO, OddWebServer, feed_of
from kit.waiting import until

from cedos.apps.files import podcast_library, podcasts, web_getting
from cedos.apps.files.partial import Partial, disk_error
from cedos.apps.files.podcast_library import MOST_NEW, Episode, EpisodeState, Library, Subscription
from cedos.apps.files.podcasts import EpisodeFetching, WantedEpisode
from cedos.apps.files.web_getting import LeadingNetworks
from cedos.errors import ConfigError, DiskError, FeedError, WebError
from cedos.model import NetworkKind
from cedos.selector.deadlines.transfer_table import TransferTable
from cedos.session.io.links import Egress
from cedos.session.sockets.metered_gate import OWN_TABLE
from cedos.web import Distance, WebWay

WIFI = Egress("lo", 1, frozenset(), NetworkKind.WIFI, metered=False)
PHONE = Egress("lo", 1, frozenset(), NetworkKind.CELLULAR, metered=True)


def feed(items, head="<?xml version='1.0' encoding='UTF-8'?>"):
    return f"{head}<rss version='2.0'><channel><title>T</title>{items}</channel></rss>".encode()


def item(title, *enclosures, guid=""):
    files = "".join(f"<enclosure {each}/>" for each in enclosures)
    return f"<item><title>{title}</title>{guid and f'<guid>{guid}</guid>'}{files}</item>"


MP3 = 'url="http://a.test/a.mp3" length="5001" type="audio/mpeg"'
COVER = 'url="http://a.test/a.jpg" length="301" type="image/jpeg"'


@pytest.mark.parametrize(
    ("data", "title"),
    [
        (feed(item("One", MP3)), "One"),
        (feed(item(" One\n two ", COVER, MP3)), "One two"),
        (b"\n" + feed(item("One", MP3)), "One"),
        (feed(item("Caf&eacute;&nbsp;one", MP3)), "Caf\xe9 one"),
        (feed(item("CafX", MP3)).replace(b"X", b"\xe9"), "Caf\xe9"),
        (feed(item("One", 'url="ftp://a.test/x"', MP3)), "One"),
        (feed(item("", MP3)), "http://a.test/a.mp3"),
    ],
    ids=["plain", "cover first", "blank line", "entities", "Latin-1", "another scheme", "no title"],
)
def test_feeds_of_the_field(data, title):
    (episode,) = podcast_library.parse_feed(data)
    assert (episode.title, episode.url) == (title, "http://a.test/a.mp3")
    assert (episode.guid, episode.size_bytes) == ("http://a.test/a.mp3", 5001)


def test_an_entry_without_a_file_and_odd_lengths():
    data = feed(
        item("text")
        + item("cover", COVER)
        + item("odd", 'url="http://a.test/b" length="many"', guid="g")
        + item("broken", 'url="http://[/"')
    )
    (episode,) = podcast_library.parse_feed(data)
    assert (episode.guid, episode.size_bytes) == ("g", 0)


@pytest.mark.parametrize(
    "data",
    [b"", b"<!DOCTYPE html><html><body>News</body></html>", b"<rss><channel>", b"/etc/passwd",
     b"http://127.0.0.1:1/feed", b"\0\1"],
)  # fmt: skip
def test_what_is_no_feed(data):
    with pytest.raises(FeedError):
        podcast_library.parse_feed(data)


def test_entities_do_not_grow():
    nested = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 9))
    head = f'<?xml version="1.0"?><!DOCTYPE rss [<!ENTITY e0 "lol">{nested}]>'
    began_s = time.process_time()
    try:
        found = podcast_library.parse_feed(feed(item("&e8;", MP3), head))
    except FeedError:
        found = []
    assert time.process_time() - began_s < 5.0
    assert all(len(each.title) <= 1000 for each in found)


@pytest.mark.parametrize("title", ["\u4eca" * 100, "../x/\0", "", "." * 300])
def test_a_file_name_fits_and_leads_nowhere_else(title):
    episode = Episode("news", "guid", title, "http://a.test/%2e%2e/x.mp3", suffix=".mp3")
    name = episode.file_name
    assert Path(name).name == name
    assert name.endswith(".mp3")
    assert len(name.encode()) <= 143


@pytest.mark.parametrize(
    ("path", "media_type", "suffix"),
    [
        ("files/49eab2", "audio/mpeg", ".mp3"), ("index.php?task=track", "audio/x-m4a", ".m4a"),
        ("one.mp3%3Fdest=75", "", ".mp3"), ("one.mp3", "text/plain", ".mp3"),
        ("one.MP3", "audio/mp4", ".MP3"), ("one", "Audio/MPEG; codecs=mp3", ".mp3"),
        ("one.pdf", "application/pdf", ".pdf"), ("one", "audio/unheard-of", ""),
    ],
)  # fmt: skip
def test_a_file_name_ends_as_players_expect(path, media_type, suffix):
    enclosure = f'url="http://a.test/{path}" type="{media_type}"'
    (episode,) = podcast_library.parse_feed(feed(item("One", enclosure)))
    assert re.fullmatch(rf"One [0-9a-f]{{6}}{re.escape(suffix)}", episode.file_name)


def subscribe(folder, url, name="news"):
    (folder / "podcasts.toml").write_text(f'[podcasts.{name}]\nurl = "{url}"\n')


@pytest.fixture
def library(tmp_path):
    subscribe(tmp_path, "http://a.test/feed")
    return Library(tmp_path / "podcasts.toml", tmp_path / "podcasts.json")


def test_subscriptions_are_read_and_episodes_kept(tmp_path, library):
    url = "http://a.test/feed"
    assert library.podcasts == {"news": Subscription(url)}
    library.episodes.append(Episode("news", "1", "One", url))
    library.save()
    again = Library(tmp_path / "podcasts.toml", tmp_path / "podcasts.json")
    assert again.wanted_episodes() == library.episodes
    subscribe(tmp_path, url, name="other")
    again.read_subscriptions()
    assert again.wanted_episodes() == [], "its feed was taken out"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "names no podcast"),
        ('[podcasts.s]\nurl = "http://a.test/"\nby = "7"\n', "by must be a time of day"),
        ('[podcasts.s]\nurl = "a.test"\n', "url must be one such as"),
        ('[podcasts."../x"]\nurl = "http://a.test/"\n', r'"\.\./x" cannot be the name'),
    ],
)
def test_a_wrong_file_of_podcasts(tmp_path, content, why):
    if content:
        (tmp_path / "podcasts.toml").write_text(content)
    with pytest.raises(ConfigError, match=why):
        Library(tmp_path / "podcasts.toml", tmp_path / "podcasts.json")


class Networks(LeadingNetworks):
    """Networks that a test changes."""

    def __init__(self, *there):
        self.there = there  # no reader of the kernel's routes is opened
        self.forbids = WebWay().forbids

    async def to(self, url):
        return list(self.there)


class Listener:
    """Wants such URLs, the first the most urgent; `by_s`: from now on."""

    def __init__(self, folder, *urls, by_s=3600.0):
        subscribe(folder, "http://a.test/feed")
        self.library = Library(folder / "podcasts.toml", folder / "podcasts.json")
        for number, url in enumerate(urls):
            self.library.episodes.append(
                Episode(
                    *("news", url, f"E{number}", url, 0, time.time() + by_s + 1e-3 * number),
                    str(folder / "got" / f"e{number}"),
                    least=Distance.HOST,
                )
            )
        self.said = []
        self.wrong = []
        self.networks = Networks(WIFI)
        self.folder = folder
        self.fetching = EpisodeFetching(
            self.library, self.networks, self.said.append, self.wrong.append
        )

    async def update(self, url):
        """Subscribe to a feed's newest episode, and read the feed."""
        self.library.podcasts["news"] = Subscription(url, keep=1)
        found = await podcast_library.read_feed(url, self.networks)
        return self.library.add_new("news", found, self.folder)

    async def run(self, within_s=30.0):
        async with asyncio.timeout(within_s):
            await self.fetching.run()

    async def run_until(self, *texts):
        """Run until all of this was said, and stop."""
        running = asyncio.create_task(self.run())
        await until(lambda: all(any(text in each for each in self.said) for text in texts))
        running.cancel()
        await asyncio.wait({running})

    @property
    def states(self):
        return [each.state for each in self.library.episodes]


@pytest.fixture
async def server(monkeypatch):
    monkeypatch.setattr(OWN_TABLE, "table", TransferTable())  # other tests have other rates
    monkeypatch.setattr(web_getting, "_SILENCE_S", 0.2)
    monkeypatch.setattr(podcasts, "_LOOK_S", 0.02)
    async with OddWebServer().running() as running:
        yield running


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


BAD = [
    ("closed", "the server refused the connection"),
    ("early", "the server broke off before the end"),
    ("silent", "the server does not answer"),
    ("status/503", "the server says 503 Reason"),
]


@pytest.mark.parametrize(("bad", "why"), BAD)
async def test_the_good_one_comes_in_the_pause_of_the_bad_one(tmp_path, server, bad, why):
    url = f"http://127.0.0.1:{closed_port()}/x" if bad == "closed" else server.url(bad)
    listener = Listener(tmp_path, url, server.url("good"))
    await listener.run_until("E1 is here", "E0: ")
    assert (tmp_path / "got" / "e1").read_bytes() == AUDIO
    assert listener.states == [EpisodeState.WANTED, EpisodeState.HERE]
    assert listener.said.count(f"news: E0: {why}; it is tried again in 5 s") == 1
    kept = json.loads((tmp_path / "podcasts.json").read_text())["episodes"]
    assert [each["why"] for each in kept] == [why, ""]


async def test_a_late_one_is_left_to_the_next_run_after_four_attempts(
    tmp_path, server, monkeypatch
):
    monkeypatch.setattr(podcasts, "_PAUSE_S", 0.05)
    listener = Listener(tmp_path, server.url("status/503"), by_s=-1.0)
    await listener.run()
    assert listener.states == [EpisodeState.WANTED]
    why = "the server says 503 Reason; tried 4 times in vain, left to the next run"
    assert listener.wrong == [f"news: E0: {why}"]
    assert server.requests["status/503"] == 4


async def test_in_its_pause_it_is_in_the_table_and_has_no_turn(tmp_path, server, monkeypatch):
    monkeypatch.setattr(podcasts, "_PAUSE_S", 0.5)
    listener = Listener(tmp_path, server.url("status/503"))
    running = asyncio.create_task(listener.run())

    def paused():
        rows = OWN_TABLE.table.rows(time.monotonic())
        return [each for each, *_ in rows if each.again_unix_s is not None]

    found = await until(paused)
    assert found[0].again_unix_s is not None
    assert found[0].why == "the server says 503 Reason"
    assert OWN_TABLE.table.networks_of(found[0].key) == ()
    server.files["status/503"] = AUDIO
    await running
    assert time.time() > found[0].again_unix_s - 0.05
    assert server.requests["status/503"] == 2
    assert not list(OWN_TABLE.table.rows(time.monotonic()))


async def test_with_time_the_phone_is_not_used(tmp_path, server):
    listener = Listener(tmp_path, server.url("good"), server.url("good"))
    listener.networks.there = (PHONE,)
    await listener.run_until("2 episodes: waiting for Wi-Fi")
    assert server.came == []
    listener.networks.there = (WIFI,)
    await listener.run()
    assert listener.states == [EpisodeState.HERE] * 2


async def test_the_phone_brings_what_would_be_late(tmp_path, server):
    listener = Listener(tmp_path, server.url("good"), by_s=1.0)
    listener.networks.there = (PHONE,)
    await listener.run()
    (episode,) = listener.library.episodes
    assert episode.state is EpisodeState.HERE
    why = "over lo, which is metered: waiting longer may be too late"
    assert any(why in each for each in listener.said)


async def test_new_episodes_of_a_feed(tmp_path, server):
    listener = Listener(tmp_path)
    server.files["feed"] = feed_of(("One", server.url("good")), ("Two", server.url("none")))
    assert await listener.update(server.url("feed")) == 1
    assert await listener.update(server.url("feed")) == 0
    await listener.run()
    (file,) = (tmp_path / "news").iterdir()
    assert file.read_bytes() == AUDIO
    listener.networks.there = ()
    with pytest.raises(WebError, match="no network leads"):
        await listener.update(server.url("feed"))


async def test_a_feed_made_to_take_long_is_given_up(tmp_path, server, monkeypatch):
    """End the child at its limits: a thread took a processor for minutes, and Ctrl-C did not end it."""
    monkeypatch.setattr(podcast_library, "_PARSE_S", 1)
    server.files["feed"] = b"<rss version='2.0'><channel><item>" + b"<a>" * (1 << 19)
    with pytest.raises(FeedError, match="too much time or memory"):
        await Listener(tmp_path).update(server.url("feed"))


async def test_episodes_leave_room_on_the_disk(tmp_path, server, monkeypatch):
    """Their feed says how many there are and how large: they filled the disk for all."""
    monkeypatch.setattr(podcasts, "KEEP_FREE_BYTES", 1 << 62)
    listener = Listener(tmp_path, server.url("good"))
    with pytest.raises(DiskError, match="less than 1 GB is free"):
        await listener.run()
    monkeypatch.setattr(podcasts, "MOST_FILE_BYTES", len(AUDIO) - 1)
    await listener.run()
    assert listener.states == [EpisodeState.REFUSED]


def test_a_feed_that_names_new_episodes_at_each_reading_has_so_many_a_day(tmp_path, library):
    """Bound the new episodes of a feed: it brought `keep` of 8 GB each half hour, without end."""
    for reading in range(MOST_NEW):
        found = [Episode("", f"{reading} {n}", "T", "http://a.test/x") for n in range(3)]
        library.add_new("news", found, tmp_path)
    assert len(library.episodes) == MOST_NEW
    for each in library.episodes:
        each.by_unix_s -= 86_400.0  # a day later
    assert library.add_new("news", [Episode("", "next", "T", "http://a.test/x")], tmp_path) == 1


async def test_a_feed_brings_so_many_bytes_a_day(tmp_path, server, monkeypatch):
    monkeypatch.setattr(podcast_library, "MOST_OF_DAY_BYTES", len(AUDIO) + 1000)
    first = Listener(tmp_path, server.url("early"), server.url("good"), server.url("good"))
    await first.run_until("its feed has brought")
    again = Listener(tmp_path)  # the next run goes on with the account
    with pytest.raises(WebError, match="the rest comes later"):
        again.library.check_day("news")
    again.library.check_day("others")
    again.library.save()
    days = json.loads((tmp_path / "podcasts.json").read_text())["days"]
    assert [*days] == ["news"], "no day stays of a feed that was taken out"
    monkeypatch.setattr(podcast_library, "_DAY_S", 0.0)
    running = asyncio.create_task(again.run())
    await until(lambda: again.states.count(EpisodeState.HERE) == 2)
    running.cancel()
    await asyncio.wait({running})


async def test_all_that_comes_counts_in_a_feeds_day(tmp_path, server):
    """Count heads and chunks, too: only the bodies' bytes were."""
    listener = Listener(tmp_path, server.url("good"))
    await listener.run()
    listener.library.save()
    (day,) = json.loads((tmp_path / "podcasts.json").read_text())["days"].values()
    assert day["received_bytes"] > len(AUDIO)


async def test_the_bytes_of_a_feeds_day_are_no_networks_fault(tmp_path, server, monkeypatch):
    """Blame no network: the next attempts went over the phone, and were "4 times in vain"."""
    monkeypatch.setattr(podcasts, "_PAUSE_S", 0.05)
    listener = Listener(tmp_path, server.url("good"), by_s=-1.0)
    phone = Egress("phone0", 2, frozenset(), NetworkKind.CELLULAR, metered=True)
    listener.networks.there = (WIFI, phone)
    listener.library.count("news", podcast_library.MOST_OF_DAY_BYTES + 1)
    await listener.run()
    why = "its feed has brought 8 GB within a day; the rest comes later"
    assert listener.wrong == [f"news: E0: {why}; left to the next run"]
    assert not any("phone0" in each for each in listener.said)
    monkeypatch.setattr(podcast_library, "_DAY_S", 0.0)
    await listener.run()
    assert listener.states == [EpisodeState.HERE]


async def test_a_feed_whose_servers_are_silent_leaves_rows_to_others(tmp_path, server):
    """Leave them rows: a silent feed had all 64 for good, and no other podcast's episode came."""
    listener = Listener(tmp_path, *[server.url(f"silent#{n}") for n in range(70)])
    good = server.url("good")
    listener.library.podcasts["other"] = listener.library.podcasts["news"]
    listener.library.episodes.append(
        Episode("other", "g", "Good", good, 0, time.time() + 7200.0, str(tmp_path / "good"),
                least=Distance.HOST)
    )  # fmt: skip
    await listener.run_until("Good is here")


async def test_episodes_without_a_row_cost_no_look_at_the_disk(tmp_path, server, monkeypatch):
    """Stop at a full table: up to 16 episodes of each feed were looked for on the disk each second."""
    monkeypatch.setattr(podcasts, "_MOST_AT_ONCE", 1)
    listener = Listener(tmp_path, *[server.url(f"silent#{n}") for n in range(3)])
    wanted, looks, sought = listener.library.wanted_episodes, [], []
    monkeypatch.setattr(listener.library, "wanted_episodes", lambda: looks.append(1) or wanted())
    monkeypatch.setattr(Episode, "here_bytes", lambda one: sought.append(one) or 0)
    running = asyncio.create_task(listener.run())
    await until(lambda: len(looks) > 3)
    running.cancel()
    await asyncio.wait({running})
    assert sought == listener.library.episodes[:1]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a link to another user")
async def test_a_podcasts_folder_that_is_a_link_of_another_user_is_not_followed(tmp_path, server):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "got").symlink_to(tmp_path / "elsewhere")
    os.lchown(tmp_path / "got", 4711, 4711)
    listener = Listener(tmp_path, server.url("good"))
    await listener.run_until("is a link of another user, which is not followed")
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_full_disk_ends_the_run(tmp_path, server, monkeypatch):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    listener = Listener(tmp_path, server.url("good"))
    with pytest.raises(DiskError, match="No space left"):
        await listener.run()
    assert listener.states == [EpisodeState.WANTED]


@pytest.mark.parametrize("what", ["a long name", "a file for a folder", "busy", "not writable"])
async def test_one_failure_of_the_disk_is_one_failure(tmp_path, server, monkeypatch, what):
    listener = Listener(tmp_path, server.url("good"), server.url("good"))
    first = listener.library.episodes[0]
    first.guid = "another"
    if what == "a long name":
        first.file = str(tmp_path / ("\u4eca" * 86))
    elif what == "a file for a folder":
        (tmp_path / "there").write_text("mine")
        first.file = str(tmp_path / "there" / "e0")
    elif what == "busy":
        (tmp_path / "got").mkdir()
        other = Partial(Path(first.file), "other")
    else:
        monkeypatch.setattr(podcasts, "Partial", refuse(podcasts.Partial, first.file))
    await listener.run_until("E1 is here")
    assert listener.states == [EpisodeState.WANTED, EpisodeState.HERE]
    assert any("it is tried again in" in each for each in listener.said)
    if what == "busy":
        other.close()


def refuse(kind, file):
    def opened(target, *arguments):
        if str(target) == file:
            raise disk_error(target, PermissionError(errno.EACCES, "Permission denied"))
        return kind(target, *arguments)

    return opened


async def test_an_unfinished_episode_follows_its_feed(tmp_path, server):
    """Its address has a token, which the publisher renews."""
    listener = Listener(tmp_path)

    def enclosure(token):
        url = f'url="{server.url("good")}?t={token}"'
        return feed(item("One", url, guid="g"))

    server.files["feed"] = enclosure(1)
    await listener.update(server.url("feed"))
    (episode,) = listener.library.episodes
    source = episode.source
    server.files["feed"], server.files["good?t=2"] = enclosure(2), AUDIO
    assert await listener.update(server.url("feed")) == 0
    assert (episode.url, episode.source) == (server.url("good?t=2"), source)
    await listener.run()
    assert listener.states == [EpisodeState.HERE]
    server.files["feed"] = enclosure(3)
    await listener.update(server.url("feed"))
    assert episode.url == server.url("good?t=2"), "what is here stays as it is"


def dated(title, date):
    return item(title, MP3, guid=title).replace("</item>", f"{date}</item>")


def test_episodes_are_in_the_order_of_their_dates_where_all_have_one():
    old = dated("old", "<pubDate>Mon, 01 Jun 2026 08:00:00 GMT</pubDate>")
    new = dated("new", "<pubDate>Tue, 02 Jun 2026 08:00:00 +0200</pubDate>")
    newest = dated("newest", "<updated>2026-06-02T07:00:00Z</updated>")
    without = dated("without", "")

    def titles(*items):
        return [each.title for each in podcast_library.parse_feed(feed("".join(items)))]

    assert titles(old, newest, new) == ["newest", "new", "old"]
    assert titles(old, new, without) == ["old", "new", "without"]


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_any_text_of_a_feed_is_kept_and_names_a_file(title, guid, url):
    """Half characters, too: XML's numbers can name them."""
    entry = {"title": title, "id": guid, "enclosures": [{"href": f"http://a.test/{url}"}]}
    found = SimpleNamespace(entries=[entry], version="rss20", bozo=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(podcast_library.feedparser, "parse", lambda *_a, **_k: found)
        for each in podcast_library.parse_feed(b"x"):
            assert Path(each.file_name).name == each.file_name
            assert msgspec.json.decode(msgspec.json.encode(each), type=Episode) == each
            assert len(each.key) == 32


def test_an_episode_that_begins_anew_each_time_is_given_up(tmp_path):
    """Its server broke off 20 kB later each time, so that no attempt counted as one in vain."""
    one = WantedEpisode(Episode("news", "1", "one", "http://192.0.2.1/1", file=str(tmp_path / "1")))
    for attempt in range(4):
        for have in (50_000, 100_000 + 20_000 * attempt):
            one.on_bytes(WIFI, have)
        one.on_failure()
    assert one.is_given_up
    one.on_bytes(WIFI, 200_000)
    assert one.failures == 0, "it went on"


@pytest.mark.parametrize("keep", [3, 300])
def test_a_feed_is_not_remembered_without_end(tmp_path, monkeypatch, keep):
    """A year of a feed that named others each time took 339 MB, which each attempt wrote anew."""
    (tmp_path / "podcasts.toml").write_text(
        f'[podcasts.news]\nurl = "http://a.test/"\nkeep = {keep}\n'
    )
    library = Library(tmp_path / "podcasts.toml", tmp_path / "book.json")
    first = [Episode("", f"first {number}", "T", "http://a.test/x") for number in range(2)]
    for day in range(5):
        monkeypatch.setattr(Subscription, "next_unix_s", lambda _, day=day: 86_400.0 * day)
        for reading in range(MOST_NEW):
            new = [
                Episode("", f"{day} {reading} {at}", "T", "http://a.test/x") for at in range(keep)
            ]
            library.add_new("news", [*first, *new], tmp_path)
            for each in library.episodes:
                each.state = EpisodeState.HERE
    guids = {each.guid for each in library.episodes}
    assert guids >= {each.guid for each in first}
    assert len(guids) == len(library.episodes) <= 2 * max(keep, MOST_NEW) + keep
    assert len(Library(tmp_path / "podcasts.toml", tmp_path / "book.json").episodes) == len(guids)
