"""Rules of an HTTP cache (RFC 9111): a stored object answers at once, after a check, or not at all."""

from email.utils import formatdate
from time import process_time, time
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.apps.files.objects.http_rules import CacheLookup, not_modified, one_range
from cedos.apps.files.objects.stored_object import ObjectRecord

URL = "http://example.org/file"
ASKED = {"accept": "*/*"}
LONG_AGO = "Mon, 02 Jan 2023 00:00:00 GMT"


def headers(age_s=0.0, **fields):
    named = {name.replace("_", "-"): [value] for name, value in fields.items()}
    return {"date": [formatdate(time() - age_s, usegmt=True)]} | named


def record(kept, asked=None):
    return ObjectRecord(str(uuid4()), URL, "v", asked or {"accept": ["*/*"]}, kept, True, time(), 3)


@pytest.mark.parametrize(
    "kept",
    [
        headers(70, cache_control="max-age=60", etag='"a"'),
        headers(0, cache_control="max-age=60", age="70", etag='"a"'),
        headers(-3600, cache_control="max-age=60", age="70", etag='"a"'),
        headers(0, cache_control="no-cache, max-age=60", etag='"a"'),
        headers(0, expires="0", etag='"a"'),
        # What says no time, or several, is stale: a change long ago made a week of it.
        headers(0, cache_control="max-age=-1", last_modified=LONG_AGO, etag='"a"'),
        headers(0, cache_control="max-age=0; private-not", last_modified=LONG_AGO, etag='"a"'),
        headers(0, cache_control="s-maxage=a, max-age=60", last_modified=LONG_AGO, etag='"a"'),
        headers(0, cache_control="max-age=0, Max-Age=600", etag='"a"'),
    ],
)
def test_what_is_stale_is_asked_about(kept):
    one = record(kept)
    lookup = CacheLookup(URL, ASKED, [one])
    assert lookup.fresh is None
    assert lookup.conditional
    assert lookup.headers["if-none-match"] == '"a"'
    good = lookup.on_answer(304, headers(cache_control="max-age=600", etag='"a"'))
    assert good.fresh == one.id
    assert good.updated[one.id]["cache-control"] == ["max-age=600"]
    assert "age" not in good.updated[one.id]
    assert not good.replaced


@pytest.mark.parametrize("fields", [{"cache_control": "a," * 300_000}, {"vary": "a," * 300_000}])
def test_an_answer_with_endless_rules_is_not_stored(fields):
    """Such rules take a second at each look at the URL, in which no client is served."""
    began_s = process_time()
    verdict = CacheLookup(URL, ASKED, []).on_answer(200, headers(**fields))
    assert not verdict.store
    with pytest.raises(ValueError, match="more rules"):
        CacheLookup(URL, ASKED | {"cache-control": "a," * 300_000}, [])
    assert process_time() - began_s < 0.4


def test_many_objects_of_one_url_cost_no_more_than_few():
    many = [record(headers(50, cache_control="max-age=60," + "a," * 400)) for _ in range(500)]
    began_s = process_time()
    assert CacheLookup(URL, ASKED, many).fresh in {each.id for each in many}
    assert process_time() - began_s < 0.3


def test_what_was_asked_for_otherwise_answers_nothing():
    kept = headers(0, cache_control="max-age=60", vary="Accept-Language", etag='"a"')
    one = record(kept, {"accept-language": ["de"]})
    assert CacheLookup(URL, {"accept-language": "de"}, [one]).fresh == one.id
    assert CacheLookup(URL, {"accept-language": "en"}, [one]).fresh is None
    # Origins confirm another variant, too: a program that reads no gzip got it.
    assert not CacheLookup(URL, {"accept-language": "en"}, [one]).conditional
    assert not CacheLookup(URL, {}, [one]).conditional
    one.headers["cache-control"] = ["no-cache"]
    assert CacheLookup(URL, {"Accept-Language": "de"}, [one]).conditional
    never = record(headers(0, cache_control="max-age=60", vary="*"))
    assert CacheLookup(URL, ASKED, [never]).fresh is None


@pytest.mark.parametrize("rule", ["max-age=0", "Min-Fresh=10", "no-cache"])
def test_what_a_request_wants_confirmed_is_asked_about(rule):
    one = record(headers(0, cache_control="max-age=60", etag='"a"'))
    lookup = CacheLookup(URL, ASKED | {"cache-control": rule}, [one])
    assert lookup.fresh is None
    assert lookup.headers["if-none-match"] == '"a"'


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ({"cache_control": "no-store, max-age=60"}, False),
        # A client is a host with several users.
        ({"cache_control": "private, max-age=60"}, False),
        ({"cache_control": "max-age=60", "set_cookie": "session=one"}, False),
        # Fields that are one user's, or must be confirmed, reached the next user.
        ({"cache_control": 'max-age=60, private="x-token"'}, False),
        ({"cache_control": 'max-age=60, No-Cache ="x-token"'}, False),
        ({"cache_control": "max-age=60, private="}, False),
        ({"cache_control": "max-age=60"}, True),
        ({"etag": '"a"', "cache_control": "no-cache"}, True),
    ],
)
def test_what_may_be_stored(said, stored):
    assert CacheLookup(URL, ASKED, []).on_answer(200, headers(**said)).store is stored


@pytest.mark.parametrize("rule", ["no-store", "max-age=0, No-Store"])
def test_who_wants_nothing_stored_leaves_nothing_to_others(rule):
    """The answer was kept, and reached the next user."""
    lookup = CacheLookup(URL, ASKED | {"cache-control": rule}, [])
    assert not lookup.on_answer(200, headers(cache_control="max-age=60")).store


@pytest.mark.parametrize(
    "rule", ["private, max-age=600", 'max-age=600, private="x-token"', "no-store"]
)
def test_a_confirmation_for_one_user_ends_what_others_may_have(rule):
    one = record(headers(70, cache_control="max-age=60", etag='"a"'))
    said = headers(cache_control=rule, etag='"a"', x_token="one's")
    confirmed = CacheLookup(URL, ASKED, [one]).on_answer(304, said)
    assert confirmed.fresh == one.id
    assert not confirmed.store
    assert "x-token" not in confirmed.updated[one.id]


@pytest.mark.parametrize("rule", ["no-store", "max-age=0, no-store"])
def test_who_wants_nothing_stored_takes_nothing_from_others(rule):
    """One program's request ended the use of an object by all users, though the origin confirmed it.

    Nor does it give: the date was stored, without the age that came with it.
    """
    one = record(headers(70, cache_control="max-age=60", etag='"a"'))
    said = headers(cache_control="max-age=600", etag='"a"', x_token="one's")
    asked = CacheLookup(URL, ASKED | {"cache-control": rule}, [one])
    confirmed = asked.on_answer(304, said)
    assert (confirmed.fresh, confirmed.updated, confirmed.replaced) == (one.id, {}, [])


def test_nobody_asks_about_an_object_without_a_validator():
    """A 304 to a request without a condition confirmed an object that had been stale for long."""
    one = record(headers(70, cache_control="max-age=60"))
    lookup = CacheLookup(URL, ASKED, [one])
    assert (lookup.fresh, lookup.headers, lookup.conditional) == (None, ASKED, False)


@pytest.mark.parametrize("current", ["first", "second"])
def test_what_an_origin_confirms_is_what_it_was_asked_about(current):
    """Confirm the second of two objects with one date: the program got the first one's bytes."""
    date = formatdate(1e9, usegmt=True)
    first, second = (
        record(headers(age_s, cache_control="no-cache", etag=f'W/"{tag}"', last_modified=date))
        for tag, age_s in (("first", 2), ("second", 1))
    )
    lookup = CacheLookup(URL, ASKED, [first, second])
    assert lookup.headers["if-none-match"] == 'W/"second"'
    if current == "first":
        assert first.id in lookup.on_answer(200, headers(etag='W/"first"')).replaced
        return
    confirmed = lookup.on_answer(304, headers(etag='W/"second"', last_modified=date))
    assert (confirmed.fresh, confirmed.replaced) == (second.id, [first.id])


def test_a_cookie_that_comes_with_a_confirmation_is_not_kept_for_others():
    one = record(headers(70, cache_control="max-age=60", etag='"a"'))
    said = headers(cache_control="max-age=600", etag='"a"', set_cookie="session=one")
    confirmed = CacheLookup(URL, ASKED, [one]).on_answer(304, said)
    assert confirmed.updated[one.id]["cache-control"] == ["max-age=600"]
    assert "set-cookie" not in confirmed.updated[one.id]


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 60))
def test_a_range_is_what_a_slice_is(size, first, last):
    data = bytes(range(size))

    def part(text):
        found = one_range(text, size)
        return None if found is None else data[found[0] : found[1]]

    assert part(f"bytes={first}-") == (data[first:] or None)
    assert part(f"bytes={first}-{last}") == (data[first : last + 1] or None)
    assert part(f"bytes=-{last}") == ((data[-last:] if last else b"") or None)
    for text in ("bytes=-", "bytes=1-2,4-5", "lines=1-2", "bytes=a-b", "", "bytes=١-"):
        assert part(text) is None


TAGS = st.text(st.characters(min_codepoint=0x23, max_codepoint=0x7E), max_size=8).map('"{}"'.format)


@given(st.lists(st.tuples(st.booleans(), TAGS), min_size=1, max_size=5), st.booleans(), TAGS)
def test_a_tag_is_one_of_those_asked_for_or_not(asked, weak, own):
    wanted = ", ".join("W/" * each + tag for each, tag in asked)
    said = not_modified({"if-none-match": wanted}, {"etag": ["W/" * weak + own]})
    assert said == (own in [tag for _, tag in asked])
    # (A date counts only where no tag was asked for.)
    late = {"if-none-match": wanted, "if-modified-since": formatdate(2e9, usegmt=True)}
    headers = {"etag": ["W/" * weak + own], "last-modified": [formatdate(1e9, usegmt=True)]}
    assert not_modified(late, headers) == said


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_date_counts_where_there_is_no_tag(changed, since):
    asked = {"if-modified-since": formatdate(since, usegmt=True)}
    assert not_modified(asked, {"last-modified": [formatdate(changed, usegmt=True)]}) == (
        changed <= since
    )


@given(st.text(max_size=30))
def test_what_is_no_condition_says_nothing(text):
    assert not not_modified({"if-modified-since": text}, {})
    assert not not_modified({"if-none-match": text.replace("*", "")}, {})


@given(
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(0, 200),
    st.sampled_from(["", "no-cache", "must-revalidate", "expires"]),
    st.sampled_from([0, 3_600, 10**6]),
)
def test_nothing_is_fresh_for_longer_than_it_was_said(max_age, kept_s, age_before, more, ahead_s):
    """By a clock of our own: what it said against the whole age (RFC 9111, 4.2).

    An hour for which an origin's clock was ahead was added to what `Expires` said.
    """
    said = ", ".join(filter(None, (f"max-age={max_age}", more)))
    until = formatdate(time() - kept_s + ahead_s + max_age, usegmt=True)
    rules = {"expires": until} if more == "expires" else {"cache_control": said}
    one = record(headers(kept_s - ahead_s, age=str(age_before), etag='"a"', **rules))
    one.received_unix_s = time() - kept_s
    fresh = CacheLookup(URL, ASKED, [one]).fresh is not None
    age_s = kept_s + age_before
    if abs(age_s - max_age) > 2:
        assert fresh == (age_s < max_age and more != "no-cache")
