"""Rules of an HTTP cache (RFC 9111): a stored object answers at once, after a check, or not at all."""

from email.utils import formatdate
from time import process_time, time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.apps.files.objects.http_rules import (
    conditions,
    confirmed_fields,
    is_fresh,
    kept_fields,
    may_be_reused,
)
from cedos.apps.files.objects.stored_object import ObjectRecord

LONG_AGO = "Mon, 02 Jan 2023 00:00:00 GMT"


def headers(age_s=0.0, **fields):
    named = {name.replace("_", "-"): [value] for name, value in fields.items()}
    return {"date": [formatdate(time() - age_s, usegmt=True)]} | named


def record(kept):
    return ObjectRecord("1", "http://example.org/file", "v", kept, True, time(), 3)


@pytest.mark.parametrize(
    "kept",
    [
        headers(70, cache_control="max-age=60"),
        headers(0, cache_control="max-age=60", age="70"),
        headers(-3600, cache_control="max-age=60", age="70"),
        headers(0, cache_control="no-cache, max-age=60"),
        headers(0, cache_control='max-age=60, No-Cache="x-token"'),
        headers(0, expires="0"),
        headers(0, expires="Thu, 01 Jan 1970 00:00:00 GMT"),
        # What says no time, or several, is stale: a change long ago made a week of it.
        headers(0, cache_control="max-age=-1", last_modified=LONG_AGO),
        headers(0, cache_control="max-age=0; private-not", last_modified=LONG_AGO),
        headers(0, cache_control="s-maxage=a, max-age=60", last_modified=LONG_AGO),
        headers(0, cache_control="max-age=0, Max-Age=600"),
        headers(0, cache_control='x="max-age=600'),
        headers(0, cache_control='x="max-age=600, y"'),
        headers(0, last_modified=formatdate(time() - 60, usegmt=True), age="7"),
        headers(0),
    ],
)
def test_what_is_stale_is_asked_about(kept):
    one = record(kept | {"etag": ['"a"']})
    assert not is_fresh(one, time())
    assert conditions(one)["If-None-Match"] == '"a"'


@pytest.mark.parametrize(
    "kept",
    [
        headers(50, cache_control="max-age=600"),
        headers(50, cache_control='Max-Age="600", x="a, b",,public'),
        headers(50, cache_control="s-maxage=600, max-age=0"),
        headers(50, expires=formatdate(time() + 600, usegmt=True)),
        headers(0, last_modified=LONG_AGO, age="600000"),
    ],
)
def test_what_is_fresh_answers_at_once(kept):
    assert is_fresh(record(kept), time())


def test_a_confirmed_object_has_the_new_rules():
    one = record(headers(70, cache_control="max-age=60", age="5", etag='"a"'))
    fields = confirmed_fields(one, headers(cache_control="max-age=600", etag='W/"a"'))
    assert fields["cache-control"] == ["max-age=600"]
    assert "age" not in fields
    one.headers = fields
    assert is_fresh(one, time() + 500)


@pytest.mark.parametrize(
    "said",
    [{"etag": '"b"'}, {"etag": '"b"', "last_modified": LONG_AGO}, {"last_modified": "other"}],
)
def test_a_confirmation_of_another_version_is_none(said):
    one = record(headers(70, cache_control="max-age=60", last_modified=LONG_AGO))
    assert confirmed_fields(one, headers(**said)) is None


@pytest.mark.parametrize("field", ["cache_control", "vary", "etag"])
def test_endless_fields_are_not_kept(field):
    """Such rules took a second at each look at the URL, in which no client was served."""
    began_s = process_time()
    said = headers(**{field: "a," * 300_000})
    assert not may_be_reused(said)
    assert kept_fields(said) == {}
    for text in ("a," * 900, " " * 1_900 + '"', "a " * 900):
        is_fresh(record(headers(cache_control=text)), time())
    assert process_time() - began_s < 0.2


@pytest.mark.parametrize(
    ("said", "reused"),
    [
        ({"cache_control": "no-store, max-age=60"}, False),
        # A client is a host with several users.
        ({"cache_control": "private, max-age=60"}, False),
        ({"cache_control": "max-age=60", "set_cookie": "session=one"}, False),
        ({"cache_control": 'max-age=60, private="x-token"'}, False),
        ({"cache_control": "max-age=60, Private="}, False),
        ({"cache_control": "max-age=60", "vary": "accept, *"}, False),
        ({"cache_control": "max-age=60", "vary": "accept-encoding"}, True),
        ({"etag": '"a"', "cache_control": "no-cache"}, True),
    ],
)
def test_what_may_answer_later_requests(said, reused):
    assert may_be_reused(headers(**said)) is reused


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
    fresh = is_fresh(one, time())
    age_s = kept_s + age_before
    if abs(age_s - max_age) > 2:
        assert fresh == (age_s < max_age and more != "no-cache")
