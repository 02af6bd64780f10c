"""The elements of a DASH manifest that say what plays when, as a tree of bounded size. Pure.

Expat alone reads them, from UTF-8 alone. A document type is refused, and with it every entity of one's
own, so that nothing grows while it is read. Prefixes are not resolved: elements that have one are none of
the manifest's, as most are that have one.
"""

from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from cedos.proxy.local.players.playlist import LONGEST

_NAMESPACE: Final = "urn:mpeg:dash:schema:mpd:2011"
_DEEPEST: Final = 32
_MOST_ELEMENTS: Final = 30_000
_MOST_SKIPPED: Final = 30_000
_LONGEST_TEXT: Final = 2_048
_WANTED: Final = frozenset(
    {
        *("MPD", "Period", "AdaptationSet", "Representation", "BaseURL", "SegmentBase"),
        *("SegmentList", "SegmentURL", "SegmentTemplate", "SegmentTimeline", "S", "Initialization"),
    }
)


@dataclass(slots=True)
class ManifestElement:
    """`linked`: what it has inside is at another place (XLink); what is here of it is left out."""

    name: str
    attributes: dict[str, str]
    linked: bool = False
    text: str = ""
    children: dict[str, list["ManifestElement"]] = field(default_factory=dict)

    def all(self, name: str) -> list["ManifestElement"]:
        return self.children.get(name, [])

    def first(self, name: str) -> "ManifestElement | None":
        return next(iter(self.all(name)), None)


def read(body: bytes) -> ManifestElement | None:
    """The root, `MPD`; None: it is none, or too much of one."""
    # Without zeros UTF-16 cannot look like UTF-8; expat would take it for what it looks like.
    if len(body) > LONGEST or b"\0" in body or b"<!DOCTYPE" in body:
        return None
    reader = _Reader()
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.characters
    parser.StartDoctypeDeclHandler = reader.doctype
    try:
        parser.Parse(body.decode("utf-8"), True)
    except (expat.ExpatError, ValueError):
        return None
    return reader.root


class _Reader:
    """ValueError from what it is given: it is no manifest."""

    def __init__(self) -> None:
        self.root: ManifestElement | None = None
        self._open: list[ManifestElement] = []
        self._skipped = 0
        self._skipped_count = 0
        self._count = 0

    def doctype(self, *_arguments: object) -> None:
        raise ValueError("a document type")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) + self._skipped >= _DEEPEST:
            raise ValueError("too deep")
        if self.root is None:
            if name != "MPD" or attributes.get("xmlns", "").lower() != _NAMESPACE:
                raise ValueError("another root")
        elif self._skipped or name not in _WANTED or self._is_foreign(attributes):
            self._skipped += 1
            self._skipped_count += 1
            if self._skipped_count > _MOST_SKIPPED:
                raise ValueError("too many elements that say nothing")
            return
        self._count += 1
        if self._count > _MOST_ELEMENTS:
            raise ValueError("too many elements")
        linked = ":href " in " ".join((*attributes, ""))  # no name has a space in it
        element = ManifestElement(name, attributes, linked)
        if self._open:
            self._open[-1].children.setdefault(name, []).append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, _name: str) -> None:
        if self._skipped:
            self._skipped -= 1
        else:
            self._open.pop()

    def characters(self, data: str) -> None:
        if self._skipped or not self._open or self._open[-1].name != "BaseURL":
            return
        element = self._open[-1]
        if len(element.text) + len(data) > _LONGEST_TEXT:
            raise ValueError("a long address")
        element.text += data

    def _is_foreign(self, attributes: dict[str, str]) -> bool:
        """Of another namespace than what it is in, or in what is at another place."""
        namespace = attributes.get("xmlns")
        return self._open[-1].linked or not (namespace is None or namespace.lower() == _NAMESPACE)
