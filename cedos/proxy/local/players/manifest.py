"""The manifest of a DASH stream (MPD, ISO/IEC 23009-1): which objects play when, for how long. Pure."""

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from cedos.proxy.local.players import manifest_tree, url_template
from cedos.proxy.local.players.addresses import Addresses, TooMuchWorkError
from cedos.proxy.local.players.manifest_periods import ManifestPeriod, periods
from cedos.proxy.local.players.manifest_tree import ManifestElement
from cedos.proxy.local.players.playlist import MOST_CHARACTERS, MOST_FOLDERS, ListedSegment
from cedos.proxy.local.players.segment_runs import SegmentRuns, whole
from cedos.proxy.local.players.url_template import UrlTemplate

_MOST_LISTS: Final = 1_000
_MOST_SEGMENTS: Final = 20_000
_LONGEST_URI: Final = 2_048
_LONGEST_NAME: Final = 128
_LONGEST_S: Final = 600.0
_WAYS: Final = ("SegmentTemplate", "SegmentList", "SegmentBase")


@dataclass(frozen=True, slots=True)
class _Representation:
    """What one of them has in one period; `listed`: the places of those that are written out.

    `initialization` precedes them; empty: nothing does, or it is elsewhere.
    """

    rendition: str
    track: str
    period: ManifestPeriod
    timescale: int
    offset: int
    runs: SegmentRuns
    template: UrlTemplate | None
    first_number: int
    listed: Mapping[str, int]
    initialization: str

    def get(self, target: str) -> ListedSegment | None:
        found = self._ticks(target)
        if found is None:
            return None
        begins, length = found
        plays = self.period.plays((begins - self.offset) / self.timescale, length / self.timescale)
        if plays is None:
            return None
        start_s, duration_s = plays
        return ListedSegment(start_s, duration_s, duration_s, self.rendition, self.track)

    def _ticks(self, target: str) -> tuple[int, int] | None:
        if self.template is None:
            place = self.listed.get(target)
            return None if place is None else self.runs.at(place)
        value = self.template.value(target)
        if value is None:
            return None
        if self.template.by_time:
            return self.runs.beginning(value)
        return self.runs.at(value - self.first_number)


class Manifest:
    """`get` a segment by its target (path and query) at the manifest's own host.

    Its `number` is when it begins, in s, so that it stays the same however often a live stream's manifest
    comes, and goes on in the next period and in another representation.
    """

    def __init__(self, representations: tuple[_Representation, ...]) -> None:
        self._representations = representations
        self._preceding = {
            each.initialization: ListedSegment(0.0, 0.0, 0.0, each.rendition, each.track)
            for each in reversed(representations)
            if each.initialization
        }

    def get(self, target: str, /) -> ListedSegment | None:
        for each in self._representations:
            if (segment := each.get(target)) is not None:
                return segment
        return self._preceding.get(target)


def parse(url: str, body: bytes) -> Manifest | None:
    """None: it is none, or none with segments that are objects of their own, at its own host.

    Left out are representations of byte ranges, at other hosts (of several base addresses the first is
    taken, as players do), at other places (XLink), or of a form that is not understood here.
    """
    root = manifest_tree.read(body)
    if root is None:
        return None
    try:
        found = tuple(_Reader(url, root).representations())
    except (ValueError, TooMuchWorkError):
        return None
    return Manifest(found) if found else None


class _Reader:
    """ValueError, TooMuchWorkError: it is no manifest, or too much of one."""

    def __init__(self, url: str, root: ManifestElement) -> None:
        self._netloc = urlsplit(url).netloc.replace("$", "$$")
        self._addresses = Addresses()
        self._root = root
        self._base = self._joined(url.replace("$", "$$"), root)
        self._is_live = root.attributes.get("type") == "dynamic"
        self._timelines: dict[int, SegmentRuns | None] = {}
        self._written = self._characters = 0

    def representations(self) -> Iterator[_Representation]:
        if len(self._root.all("Period")) > _MOST_LISTS:
            raise ValueError("too many periods")
        count = groups = 0
        for outer, period in periods(self._root):
            base = self._joined(self._base, outer)
            for place, group in enumerate(outer.all("AdaptationSet")):
                groups += 1
                if groups > _MOST_LISTS:
                    raise ValueError("too many sets")
                group_base = self._joined(base, group)
                track = _track(place, group)
                for element in group.all("Representation"):
                    count += 1
                    if count > _MOST_LISTS:
                        raise ValueError("too many representations")
                    levels = (outer, group, element)
                    found = self._read(period, track, levels, group_base)
                    if found is not None:
                        yield found

    def _read(
        self,
        period: ManifestPeriod,
        track: str,
        levels: tuple[ManifestElement, ManifestElement, ManifestElement],
        base: str,
    ) -> _Representation | None:
        """None: it is left out."""
        way = next((way for each in reversed(levels) for way in _WAYS if each.first(way)), None)
        told = [found for each in levels if way and (found := each.first(way)) is not None]
        if way in (None, "SegmentBase") or any(each.linked for each in (*told, *levels)):
            return None
        urls = next((urls for each in reversed(told) if (urls := each.all("SegmentURL"))), [])
        if way == "SegmentList":
            self._written += len(urls)
            if self._written > _MOST_SEGMENTS:
                raise ValueError("too many segments")
        try:
            return self._made(period, track, levels[-1], told, urls, base)
        except ValueError:
            return None

    def _made(
        self,
        period: ManifestPeriod,
        track: str,
        element: ManifestElement,
        told: list[ManifestElement],
        urls: list[ManifestElement],
        base: str,
    ) -> _Representation:
        """ValueError: it is not understood."""
        attributes = ChainMap(*(each.attributes for each in reversed(told)))
        name = element.attributes.get("id", "")
        if not 0 < len(name) <= _LONGEST_NAME:
            raise ValueError("no name")
        timescale = whole(attributes, "timescale", 1)
        timelines = (each.first("SegmentTimeline") for each in reversed(told))
        timeline = next((each for each in timelines if each is not None), None)
        runs = self._runs(timeline, attributes)
        if not 0 < runs.longest <= _LONGEST_S * timescale:
            raise ValueError("segments that are too long")
        base = self._joined(base, element)
        template: UrlTemplate | None = None
        listed: dict[str, int] = {}
        if told[-1].name == "SegmentTemplate":
            media = attributes.get("media", "")
            bandwidth = element.attributes.get("bandwidth", "")
            target = self._target(base, url_template.filled(_short(media), name, bandwidth))
            template = UrlTemplate(target)
            if template.by_time and timeline is None:
                raise ValueError("times that are not told")
        else:
            if self._is_live and timeline is None:
                raise ValueError("places that change")
            listed = {self._listed(base, each): place for place, each in enumerate(urls)}
        return _Representation(
            f"{track}/{name}",
            track,
            period,
            timescale,
            0 if timeline is None else whole(attributes, "presentationTimeOffset", 0),
            runs,
            template,
            whole(attributes, "startNumber", 1),
            listed,
            self._initialization(base, element, told),
        )

    def _initialization(
        self, base: str, element: ManifestElement, told: list[ManifestElement]
    ) -> str:
        for each in reversed(told):
            media = each.attributes.get("initialization")
            try:
                if media is not None:
                    name = element.attributes.get("id", "")
                    bandwidth = element.attributes.get("bandwidth", "")
                    target = self._target(base, url_template.filled(_short(media), name, bandwidth))
                    plain = target.replace("$$", "")
                    return "" if "$" in plain else target.replace("$$", "$")
                if (own := each.first("Initialization")) is not None:
                    source = own.attributes.get("sourceURL")
                    is_part = source is None or "range" in own.attributes
                    return "" if source is None or is_part else self._plain(base, source)
            except ValueError:
                return ""
        return ""

    def _runs(self, timeline: ManifestElement | None, attributes: Mapping[str, str]) -> SegmentRuns:
        """A timeline that many representations have is read once."""
        if timeline is None:
            return SegmentRuns.equal(whole(attributes, "duration"))
        key = id(timeline)
        if key not in self._timelines:
            try:
                listed = [each.attributes for each in timeline.all("S")]
                self._timelines[key] = None if timeline.linked else SegmentRuns.of_timeline(listed)
            except ValueError:
                self._timelines[key] = None
        runs = self._timelines[key]
        if runs is None:
            raise ValueError("a timeline that is none")
        return runs

    def _listed(self, base: str, element: ManifestElement) -> str:
        media = element.attributes.get("media")
        if media is None or "mediaRange" in element.attributes:
            raise ValueError("a range of bytes")
        return self._plain(base, media)

    def _plain(self, base: str, address: str) -> str:
        target = self._target(base, _short(address).replace("$", "$$"))
        return target.replace("$$", "$") if "$" in target else target

    def _target(self, base: str, address: str) -> str:
        """Path and query; `$` is doubled."""
        netloc, target = self._addresses.target(base, _short(address))
        if netloc != self._netloc:
            raise ValueError("another host")
        self._characters += len(target)
        if self._characters > MOST_CHARACTERS:
            raise TooMuchWorkError
        return _short(target)

    def _joined(self, base: str, element: ManifestElement) -> str:
        """What is below it is relative to it; `$` is doubled, as it means more in a template."""
        own = element.first("BaseURL")
        relative = "" if own is None else own.text.strip().replace("$", "$$")
        return _short(self._addresses.joined(base, relative))


def _short(address: str) -> str:
    if not 0 < len(address) <= _LONGEST_URI or address.count("/") > MOST_FOLDERS:
        raise ValueError("no address, or a long one")
    return address


def _track(place: int, group: ManifestElement) -> str:
    """What is played one after another: sound, pictures, texts; by its set where it does not say."""
    first = group.first("Representation")
    told = [group.attributes, first.attributes if first is not None else {}]
    kinds = [each[name] for name in ("contentType", "mimeType") for each in told if name in each]
    return next(iter(kinds), str(place)).partition("/")[0][:_LONGEST_NAME]
