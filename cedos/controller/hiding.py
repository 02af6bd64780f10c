"""Names of hosts in a log, each replaced by one that says nothing, the same by the same. Pure.

The labels of a name are replaced one by one, so that what is below a name stays below it. The address of
a page is replaced whole. A sentence may hold both. Addresses of hosts stay, as a log without them would
say nothing; so do the names of networks, access points and budgets, and a host's name of one word, which
no text can be told from.
"""

import re
from hashlib import blake2b
from typing import Any

from cedos.controller.rule import is_host_name
from cedos.model import is_address
from cedos.selector.deadlines.transfer_table import TableTransfer

# The classes whose texts stay, wherever they stand.
KEPT = frozenset({"Network", "Attached", "Attachment", "Budget"})
_PAGE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s]*[^\s.,;:)]")
_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*\.[A-Za-z][\w-]+")


class Hider:
    """Replaces the names of hosts in texts; who lacks the key cannot tell which they were."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._kept: set[str] = set()

    def keep(self, text: str) -> None:
        """Leave a text alone that looks like a host's name and is none."""
        if "." in text:
            self._kept.add(text)

    def text(self, text: str) -> str:
        """Return a text without the names of hosts in it."""
        if "." not in text and "://" not in text:
            return text
        text = _PAGE.sub(lambda found: self.whole(found[0]), text)
        return _NAME.sub(lambda found: self._name(found[0]), text)

    def whole(self, text: str) -> str:
        """Return what stands for a text as a whole, of which nothing may be told."""
        return "h" + blake2b(text.encode(), key=self._key, digest_size=5).hexdigest()

    def _name(self, word: str) -> str:
        if word in self._kept or is_address(word) or not is_host_name(word):
            return word
        return ".".join(map(self.whole, word.split(".")))


def without_names(
    value: object, fields: dict[str, Any], hide: Hider | None
) -> tuple[dict[str, Any], Hider | None]:
    """Return the fields of an object, and what hides the names in them; None: they stay."""
    if hide is None:
        return fields, None
    if type(value).__name__ in KEPT:
        for each in fields.values():
            if isinstance(each, str):
                hide.keep(each)
        return fields, None
    if isinstance(value, TableTransfer):  # a file has a name, too
        fields |= {"name": hide.whole(value.name), "server": hide.whole(value.server)}
    return fields, hide
