"""Feeds as publishers write them, and as nobody should."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import FeedError
from cedos.files.podcasts import feed

FEED = """<?xml version="1.0" encoding="UTF-8"?>
<rss version="2.0" xmlns:itunes="http://www.itunes.com/dtds/podcast-1.0.dtd">
 <channel><title>Morning &amp; news</title><image><title>not this</title></image>
  <item><title>Tuesday <![CDATA[<live>]]></title><guid isPermaLink="false">two</guid>
   <pubDate>Tue, 24 Nov 2026 05:00:00 +0100</pubDate>
   <enclosure url="https://example.org/two.mp3?x=1" length="12000000" type="audio/mpeg"/></item>
  <item><title>without a file</title><guid>none</guid></item>
  <item><title>odd</title><pubDate>some day</pubDate><itunes:title>x</itunes:title>
   <enclosure url="http://example.org/odd.ogg" length="many"/></item>
  <item><title>elsewhere</title><enclosure url="file:///etc/passwd"/></item>
 </channel></rss>"""


def test_episodes_with_what_is_known_of_them() -> None:
    found = feed.parse(FEED.encode())
    assert found.title == "Morning & news"
    first, second = found.episodes
    assert first == feed.Episode(
        "two",
        "Tuesday <live>",
        "https://example.org/two.mp3?x=1",
        12_000_000,
        datetime(2026, 11, 24, 4, tzinfo=UTC),
    )
    assert second == feed.Episode("http://example.org/odd.ogg", "odd", "http://example.org/odd.ogg")


BOMB = (
    '<!DOCTYPE r [<!ENTITY a "aaaaaaaaaa">'
    + "".join(
        f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + "]><rss><channel><title>&i;</title></channel></rss>"
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "document type"),
        ('<!DOCTYPE r SYSTEM "file:///etc/passwd"><rss><channel/></rss>', "document type"),
        ("<rss><channel>" + "<a>" * 100, "nested"),
        ("<rss><channel>", "no feed"),
        ("<html/>", "no RSS feed"),
        ("", "no feed"),
        ('<?xml version="1.0" encoding="nosuch"?><rss><channel/></rss>', "no feed"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(FeedError, match=why):
        feed.parse(text.encode())


def test_what_is_kept_has_bounds() -> None:
    item = '<item><title>{}</title><enclosure url="http://x.test/{}"/></item>'
    text = "".join(item.format("t" * 10_000, n) for n in range(700))
    found = feed.parse(f"<rss><channel>{text}</channel></rss>".encode())
    assert len(found.episodes[0].title) <= 4096
    many = "".join(item.format("t", n) for n in range(3000))
    assert len(feed.parse(f"<rss><channel>{many}</channel></rss>".encode()).episodes) == 2000
    with pytest.raises(FeedError, match="the most"):
        feed.parse(bytes(feed.MOST_BYTES + 1))


@given(st.text(max_size=200))
def test_any_text_in_a_title_is_a_title(text: str) -> None:
    shown = "".join(each for each in text if each.isprintable())
    body = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    found = feed.parse(f"<rss><channel><title>{body}</title></channel></rss>".encode())
    assert found.title == " ".join(shown.split())
