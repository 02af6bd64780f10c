"""The rules of HTTP's caches (RFC 9111) for objects that are asked for in one way only. Pure."""

import re
from typing import Final

from cedos.apps.files.objects.stored_object import HeaderLists, ObjectRecord
from cedos.web import date

# The fields that say how long an answer is fresh, and of which version it is. Others are not kept.
_KEPT: Final[tuple[str, ...]] = (
    "age",
    "cache-control",
    "date",
    "etag",
    "expires",
    "last-modified",
    "vary",
)
_MOST_RULES_BYTES: Final = 2_000
# Rules by which an answer, or a part of it, may be one user's. The users of a host share its objects.
_NOT_SHARED: Final = re.compile(r"\b(?:private|no-store)\b", re.IGNORECASE)
_RULE: Final = re.compile(
    r'[ \t]*+(?:([^\s=,;"]+)(?:=(?:"([^"\\]*)"|([^\s,;"]+)))?)?[ \t]*(?:,|\Z)'
)
_LONGEST_S: Final = 10  # digits
# Without a word of the origin, an answer is fresh for a tenth of its age (4.2.2).
_OF_AGE: Final = 0.1
_MOST_OF_AGE_S: Final = 7 * 86_400.0


def kept_fields(headers: HeaderLists) -> HeaderLists:
    """Return the fields of an answer that are kept; of endless ones none."""
    return (
        {} if _are_endless(headers) else {name: headers[name] for name in _KEPT if name in headers}
    )


def may_be_reused(headers: HeaderLists) -> bool:
    """Return whether an answer may serve later requests: no rule, cookie or endless field forbids it."""
    if _are_endless(headers) or "set-cookie" in headers or "*" in _text(headers, "vary"):
        return False
    return _NOT_SHARED.search(_text(headers, "cache-control")) is None


def is_fresh(record: ObjectRecord, now_unix_s: float) -> bool:
    """Return whether an object answers without asking its origin. Unclear rules say no."""
    headers = record.headers
    rules = _rules(_text(headers, "cache-control"))
    if rules is None or "no-cache" in rules:
        return False
    dated_s = date(_text(headers, "date"))
    dated_s = record.received_unix_s if dated_s is None else dated_s
    # What caches before us, and clocks that are ahead, make of its age (4.2.3).
    since_s = min(dated_s, record.received_unix_s - (_seconds(_text(headers, "age")) or 0))
    lasts_s = 0.0
    if (said := rules.get("s-maxage", rules.get("max-age"))) is not None:
        lasts_s = _seconds(said) or 0
    elif "expires" in headers:
        lasts_s = (date(_text(headers, "expires")) or dated_s) - dated_s  # by the origin's clock
    elif (changed_s := date(_text(headers, "last-modified"))) is not None:
        lasts_s = min(_OF_AGE * (dated_s - changed_s), _MOST_OF_AGE_S)
    return now_unix_s - since_s < lasts_s


def conditions(record: ObjectRecord) -> dict[str, str]:
    """Return the fields that ask an origin whether an object is still its own; empty: it cannot tell."""
    asks = (("If-None-Match", "etag"), ("If-Modified-Since", "last-modified"))
    return {name: record.headers[kept][0] for name, kept in asks if kept in record.headers}


def confirmed_fields(record: ObjectRecord, headers: HeaderLists) -> HeaderLists | None:
    """Return the fields of an object that a 304 confirms; None: it names another version (4.3.4)."""
    name = "etag" if "etag" in headers else "last-modified"
    had, named = (_text(each, name).removeprefix("W/") for each in (record.headers, headers))
    if named and named != had:
        return None
    return {name: values for name, values in record.headers.items() if name != "age"} | headers


def _are_endless(headers: HeaderLists) -> bool:
    return sum(len(_text(headers, name)) for name in _KEPT) > _MOST_RULES_BYTES


def _text(headers: HeaderLists, name: str) -> str:
    return ",".join(headers.get(name, ()))


def _rules(text: str) -> dict[str, str] | None:
    """Return rules for caches by name; None: they cannot be read, or one is there twice (4.2.1)."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        if (rule := _RULE.match(text, at)) is None or (name := (rule[1] or "").lower()) in found:
            return None
        if name:
            found[name] = rule[2] or rule[3] or ""
        at = rule.end()
    return found


def _seconds(text: str) -> int | None:
    good = text.isascii() and text.isdecimal() and len(text) <= _LONGEST_S
    return int(text) if good else None
