"""The addresses that playlists list, as `urljoin` and `urlsplit` read them, but quickly. Pure.

One that ends in a name whose characters mean nothing else is put behind the folder that it is in. That
folder is asked of the library once; so is, each time, all that is not so plain, and of that a document
may have only so much.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import urljoin, urlsplit

MOST_WORK: Final = 4 << 20
_WORK: Final = 1 << 10
"""What asking the library costs, beside the characters that it is given: some thousands may be asked."""

_FIRST: Final = r"[^\0- ./?#;]"
_OTHERS: Final = r"[^\0-\x1f/?#;]*"
_NAME: Final = rf"{_FIRST}{_OTHERS}(?:;[^\0-\x1f/?#]+)?(?:\?[^\0-\x1f#]+)?(?<! )"
_BELOW: Final = re.compile(rf"(?![A-Za-z0-9+.-]*:)(?:{_FIRST}{_OTHERS}/)*(?:{_NAME})?")
"""In the folder, or in folders of it; no scheme, and nothing that goes up."""

_SOMEWHERE: Final = re.compile(rf"([^\0-\x1f?#]*/)((?:{_NAME})?)")
_PROBE: Final = "x"


class TooMuchWorkError(Exception):
    """So many strange addresses are no player's."""


class _Folder(NamedTuple):
    address: str
    netloc: str
    path: str


class Addresses:
    """Of one document. ValueError where the library has one."""

    def __init__(self) -> None:
        self._left = MOST_WORK
        self._folders: dict[tuple[str, str], _Folder | None] = {}

    def joined(self, base: str, address: str) -> str:
        """As `urljoin`."""
        if not address:
            return base
        folder, rest = self._found(base, address)
        return self._slow(base, address) if folder is None else folder.address + rest

    def target(self, base: str, address: str) -> tuple[str, str]:
        """At which host (with its port), and which path and query there."""
        folder, rest = self._found(base, address)
        if folder is not None:
            return folder.netloc, folder.path + rest
        there = urlsplit(self._slow(base, address))
        return there.netloc, f"{there.path}?{there.query}" if there.query else there.path

    def _found(self, base: str, address: str) -> tuple[_Folder | None, str]:
        """The folder, and what is to be put behind it; None: it is not so plain."""
        if address and _BELOW.fullmatch(address):
            return self._folder(base, ""), address
        match = _SOMEWHERE.fullmatch(address)
        return (None, "") if match is None else (self._folder(base, match[1]), match[2])

    def _folder(self, base: str, head: str) -> _Folder | None:
        """None: with another name at its end `head` may lead to another folder."""
        key = (base, head)
        if key not in self._folders:
            address = self._slow(base, head + _PROBE)
            there = urlsplit(address)
            is_one = address.endswith(there.path) and there.path.endswith("/" + _PROBE)
            self._folders[key] = (
                _Folder(address[:-1], there.netloc, there.path[:-1]) if is_one else None
            )
        return self._folders[key]

    def _slow(self, base: str, address: str) -> str:
        self._left -= _WORK + len(base) + len(address)
        if self._left < 0:
            raise TooMuchWorkError
        return urljoin(base, address)
