"""The rules of HTTP's caches (RFC 9111), by hishel: pure but for the date of today."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Final
from uuid import UUID

from hishel import (
    AnyState,
    CacheMiss,
    CacheOptions,
    Entry,
    FromCache,
    Headers,
    IdleClient,
    InvalidateEntries,
    NeedRevalidation,
    NeedToBeUpdated,
    Request,
    Response,
    StoreAndUse,
)

from cedos.apps.files.objects.stored_object import HeaderLists, ObjectRecord
from cedos.web import date

# A client is a host: its users share its objects.
_OPTIONS: Final = CacheOptions(shared=True)
# hishel needs 1 us for each byte of Cache-Control and Vary, of each object of a URL, at each look.
# Longer ones forbid to store.
_MOST_RULES_BYTES: Final = 1_000
_MOST_OF_URL: Final = 8
# Rules of a request that hishel does not know: the object has to be confirmed.
_STRICT: Final = re.compile("max-age|min-fresh", re.IGNORECASE)
# Rules by which nothing, or not every field, may be another user's. hishel takes `private="x-token"` for
# no rule, and does not read a request's `no-store`.
_NOT_STORED: Final = re.compile(r"\b(?:private|no-store|no-cache\s*=)", re.IGNORECASE)
# How long an answer is fresh, and that as it can be read.
_LIFETIME: Final = re.compile(r"(?<![\w-])(?:s-maxage|max-age)(?![\w-])")
_CLEAR_LIFETIME: Final = re.compile(r'(?<![\w-])(s-maxage|max-age)="?([0-9]+)"?[ \t]*(?=,|$)')
CONDITIONS: Final[tuple[str, ...]] = ("if-none-match", "if-modified-since")
_VALIDATORS: Final = frozenset({"etag", "last-modified", "date"})
_TAG: Final = re.compile(r'"[\x21\x23-\x7e\x80-\xff]*"')
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The use of an answer: `fresh`, the stored object that answers the request, or a new object.

    `store`: the object may serve other requests; `replaced` are no good any more; `updated` have
    other headers now.
    """

    store: bool = False
    fresh: str | None = None
    replaced: list[str] = field(default_factory=list)
    updated: dict[str, HeaderLists] = field(default_factory=dict)


class CacheLookup:
    """A request, and which of the `kept` objects may answer it.

    `fresh`: the id of one that does, without asking; else `headers` are to be asked with. ValueError: the
    request has more rules than are read.
    """

    def __init__(self, url: str, headers: Mapping[str, str], kept: Sequence[ObjectRecord]) -> None:
        rules = headers.get("cache-control", "")
        if len(rules) > _MOST_RULES_BYTES:
            raise ValueError("a request with more rules for caches than are read")
        strict = {"cache-control": f"{rules}, no-cache"} if _STRICT.search(rules) else {}
        request = Request("GET", url, Headers({**headers, **strict}))
        newest = [each for each in kept if each.reusable][-_MOST_OF_URL:]
        variants = [each for each in newest if _is_variant(each, headers)]
        # hishel asks about the first of several, and may take another one for the confirmed.
        self._older = [each.id for each in variants[:-1]]
        self._had = variants[-1] if variants else None
        self._forbids_storage = _NOT_STORED.search(rules) is not None
        found = IdleClient(options=_OPTIONS).next(request, list(map(_entry, variants[-1:])))
        self.fresh = str(found.entry.id) if isinstance(found, FromCache) else None
        self.headers = dict(headers)
        self._state: CacheMiss | NeedRevalidation | None = None
        if isinstance(found, NeedRevalidation):
            self.headers = {name: found.request.headers[name] for name in found.request.headers}
        if not isinstance(found, FromCache):
            self._state = found

    @property
    def conditional(self) -> bool:
        return any(name in self.headers for name in CONDITIONS)

    def on_answer(self, status: int, headers: HeaderLists) -> Verdict:
        """Return what the origin's answer means for the kept objects."""
        assert self._state is not None
        if status == 304:  # its fields are for all who get the object later
            headers = {name: value for name, value in headers.items() if name != "set-cookie"}
        forbidden = _forbids_storage(headers)
        nothing_new = forbidden or self._forbids_storage
        if nothing_new and status == 304:
            headers = {name: value for name, value in headers.items() if name in _VALIDATORS}
        elif nothing_new:
            headers = headers | {"cache-control": ["no-store"], "vary": ["*"]}
        state: AnyState = self._state.next(Response(status, Headers(dict(headers))))
        if isinstance(state, InvalidateEntries):
            state = state.next_state
        had, replaced = self._had, self._older if status in (200, 304) else []
        if isinstance(state, NeedToBeUpdated) and had is not None:
            now = state.updating_entries[0].response.headers
            newer = {name: values for name, values in had.headers.items() if name != "age"}
            newer |= {name: now.get_list(name) or [] for name in now if name in headers}
            # What one request forbids takes no stored object from the others, and gives none.
            updated = {} if self._forbids_storage and not forbidden else {had.id: newer}
            return Verdict(not forbidden, had.id, replaced, updated)
        if had is not None and status in (200, 304):
            replaced = [*replaced, had.id]
        return Verdict(store=isinstance(state, StoreAndUse), replaced=replaced)


def variant(headers: HeaderLists, asked: Mapping[str, str]) -> dict[str, str | None]:
    """Return the fields of a request by which an answer was chosen (RFC 9111, 4.1)."""
    asks = {name.lower(): value for name, value in asked.items()}
    names = (each.strip().lower() for each in ",".join(headers.get("vary", ())).split(","))
    return {name: asks.get(name) for name in names}


def _is_variant(record: ObjectRecord, headers: Mapping[str, str]) -> bool:
    """Return whether an object was asked for as this request asks.

    Origins confirm another variant, too: that of a program that reads gzip, say.
    """
    asked = {name: values[0] for name, values in record.asked.items()}
    return variant(record.headers, asked) == variant(record.headers, headers)


def _entry(record: ObjectRecord) -> Entry:
    request = Request("GET", record.url, Headers(dict(record.asked)))
    # hishel tells an age by the date alone: what caches before us, and clocks that are ahead, make of it
    # (RFC 9111, 4.2.3) goes in there.
    dated_s = _dated_s(record)
    since_s = min(dated_s, record.received_unix_s - _age_s(record))
    headers = record.headers | {"date": [formatdate(since_s, usegmt=True)]}
    if (until_s := date(",".join(headers.get("expires", ())))) is not None:  # by the origin's clock
        headers["expires"] = [formatdate(since_s + max(0.0, until_s - dated_s), usegmt=True)]
    rules = ",".join(headers.get("cache-control", ())).lower()
    named, said = _LIFETIME.findall(rules), _CLEAR_LIFETIME.findall(rules)
    if len(named) != len(said) or len(set(named)) != len(set(said)):
        headers["cache-control"] = ["no-cache"]  # (4.2.1); hishel would take another rule
    return Entry(UUID(record.id), request, Response(200, Headers(dict(headers))))


def _forbids_storage(headers: HeaderLists) -> bool:
    """Return whether an answer forbids its storage, by a rule, a cookie, or more rules than are read."""
    rules = {name: ",".join(headers.get(name, ())) for name in ("cache-control", "vary")}
    endless = sum(map(len, rules.values())) > _MOST_RULES_BYTES
    return endless or "set-cookie" in headers or bool(_NOT_STORED.search(rules["cache-control"]))


def _dated_s(record: ObjectRecord) -> float:
    dated_s = date(record.headers.get("date", [""])[0])
    return record.received_unix_s if dated_s is None else dated_s


def _age_s(record: ObjectRecord) -> int:
    text = record.headers.get("age", ["0"])[0]
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def not_modified(asked: Mapping[str, str], headers: HeaderLists) -> bool:
    """Return True if the client has this version: `if-none-match`, else `if-modified-since` (13.2.2)."""
    if (wanted := asked.get("if-none-match")) is not None:
        tag = headers.get("etag", [""])[0].removeprefix("W/")
        if wanted.strip() == "*":
            return True
        # Compared weakly (RFC 9110, 13.1.2).
        return bool(tag) and tag in _TAG.findall(wanted)
    since = date(asked.get("if-modified-since", ""))
    changed = date(headers.get("last-modified", [""])[0])
    return since is not None and changed is not None and changed <= since


def one_range(text: str, size: int) -> tuple[int, int] | None:
    """Return the first byte and the one behind the last (RFC 9110, 14.1.2); None: not one valid range."""
    match = _RANGE.fullmatch(text.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        first, end = max(0, size - int(match[2])), size
    else:
        first, end = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
    return (first, end) if first < end else None
