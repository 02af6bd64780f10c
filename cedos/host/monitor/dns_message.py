"""DNS questions, and whether a datagram is an honest answer to one (RFC 1035, section 4). Pure.

Only an honest answer may be timed: an answer to another question, half an answer, or a box in the way
that answers every name by itself, would make a network seem quicker than it is.

The messages in TCP streams of answers, each behind its length (RFC 1035, 4.2.2). Pure.
"""

import struct
from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import ip_network
from typing import Final

from cedos.controller.events import DNAME, DnsReply, RecordOwner
from cedos.model import Address, FlowKey, address

# Kinds of records: a name's IPv4 addresses, and those of IPv6.
A, AAAA = 1, 28
_CNAME, _SRV, _SVCB, _HTTPS = 5, 33, 64, 65
# Parameters of services (RFC 9460), whose addresses programs use like those of A and AAAA.
_IPV4_HINT, _IPV6_HINT = 4, 6
_HEADER = struct.Struct("!6H")
_QUESTION = struct.Struct("!2H")
_RECORD = struct.Struct("!2HIH")
_RESPONSE, _TRUNCATED, _RECURSE, _RECURSES, _CODE = 0x8000, 0x0200, 0x0100, 0x0080, 0x000F
_IN = 1
_KIND = 0x7800  # 0: a query; others are updates and the like
NO_ERROR, _FAILED, _NO_SUCH_NAME, _REFUSED = 0, 2, 3, 5
# Answers of a resolver that cannot or will not tell. They say nothing about the name.
FAILURES = (_FAILED, _REFUSED)
_POINTER = 0xC0
_MOST_JUMPS = 16
_MAX_LABEL, _MAX_NAME = 63, 253
# The most names to which the records of an answer lead, for the name asked for or not, and with SRV: a
# resolver follows some 16 aliases. What has more is not read.
_MOST_LED, _MOST_SERVERS = 16, 64
# The most that is read of an answer, which is not read if it has more, or more than bytes: each record,
# label, pointer and address counts, and what is told of each name. (64 KiB of it stopped all for 0.2 s.)
_MOST_STEPS: Final = 1024
_ANY: Final = 255
# Whole zones: no program takes their records for answers.
_TRANSFERS: Final = (251, 252)
# The most that is read of what stands beside an answer (records, labels, addresses), and the most owners.
_MOST_BESIDE, _MOST_OWNERS = 2048, 128
# Where the target begins in records. That of a service is what programs look up next (RFC 2782).
_TARGETS: Final = {_CNAME: 0, _SRV: 6, _SVCB: 2, _HTTPS: 2}
# Addresses that no public name has (RFC 1918, 6598, 3927, 4193): those of boxes in between.
_NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
            *("172.16.0.0/12", "192.168.0.0/16", "::/127", "fc00::/7", "fe80::/10"),
        ),
    )
)
# Of each user: one who holds many connections is not to end those of others.
_MOST_STREAMS: Final = 64
_LENGTH: Final = struct.Struct("!H")
_NUMBERS: Final = 0xFFFFFFFF
# The bytes of a stream that are kept, to know whether a repeated segment says the same.
_KEPT_BYTES: Final = 1 << 16
# A stream's socket, the number of its next byte, and the received part of a message.
Reading = tuple[int, int, bytes]


class DnsFault(StrEnum):
    FOREIGN = "it answers another question"
    TRUNCATED = "it was cut off"
    REFUSED = "the resolver failed or refused"
    HIJACKED = (
        "a name that does not exist, or the public one asked for, was given a private address"
    )


def question(number: int, name: str, kind: int = A) -> bytes:
    """Return the question for an address of `name`; ValueError where that is no valid name."""
    labels = name.rstrip(".").split(".")
    try:
        encoded = [label.encode("ascii") for label in labels]
    except UnicodeEncodeError as error:
        raise ValueError(f"{name!r}: ASCII (punycode) would be right") from error
    if len(name.rstrip(".")) > _MAX_NAME or any(not 0 < len(e) <= _MAX_LABEL for e in encoded):
        raise ValueError(f"{name!r} is no domain name")
    body = b"".join(bytes((len(label),)) + label for label in encoded) + b"\0"
    return _HEADER.pack(number, _RECURSE, 1, 0, 0, 0) + body + _QUESTION.pack(kind, _IN)


def read_question(data: bytes) -> tuple[str, int] | None:
    """Return the name and the kind of record that a datagram asks for; None: it is no single question."""
    if len(data) < _HEADER.size:
        return None
    _, flags, questions, _, _, _ = _HEADER.unpack_from(data)
    if flags & (_RESPONSE | _KIND) or questions != 1:
        return None
    name = _name(data, _HEADER.size)
    if name is None or name[1] + _QUESTION.size > len(data):
        return None
    kind, _ = _QUESTION.unpack_from(data, name[1])
    return name[0], kind


def odd_name(data: bytes) -> tuple[str, int] | None:
    """Return the name (other bytes than ASCII as Latin-1) and kind 0 where `read_question` gives up."""
    if len(data) < _HEADER.size or _HEADER.unpack_from(data)[2] != 1:
        return None
    name = _whole_name(data, _HEADER.size)
    return (name, 0) if name else None


def failure(question: bytes) -> bytes:
    """Return the answer SERVFAIL to a question; `asked(question)` is not None."""
    number, flags, _, _, _, _ = _HEADER.unpack_from(question)
    _, end = _name(question, _HEADER.size) or ("", _HEADER.size)
    code = _RESPONSE | flags & _RECURSE | _RECURSES | _FAILED
    return _HEADER.pack(number, code, 1, 0, 0, 0) + question[_HEADER.size : end + _QUESTION.size]


def read_response(data: bytes) -> DnsReply | None:
    """Return the response in a datagram without its records, which are not looked at.

    None: it is no response to one question.
    """
    if len(data) < _HEADER.size:
        return None
    number, flags, questions, *_ = _HEADER.unpack_from(data)
    if not flags & _RESPONSE or questions != 1:
        return None
    name = _name(data, _HEADER.size)
    if name is None or name[1] + _QUESTION.size > len(data):
        return None
    kind, _ = _QUESTION.unpack_from(data, name[1])
    return DnsReply(number, flags & _CODE, bool(flags & _TRUNCATED), name[0], kind)


def parse(data: bytes) -> DnsReply | None:
    """Return the response in a datagram.

    None: it is no response to one question, or has records that cannot be read, or too many.
    """
    if (reply := read_response(data)) is None:
        return None
    _, end = _name(data, _HEADER.size) or ("", _HEADER.size)
    records = _Records(data, reply.kind)
    if not records.read(end + _QUESTION.size, _HEADER.unpack_from(data)[3]):
        return None
    owners = records.owners(reply.name)
    if records.names.left <= 0:
        return None
    return replace(
        reply,
        addresses=tuple(records.addresses),
        aliases=tuple(records.aliases),
        owners=owners,
    )


@dataclass(frozen=True, slots=True)
class BesideAnswer:
    """The records of a response beside the answer to its question, which systemd-resolved takes, too.

    `strays`: as answers about them, the owners of records in the answer section to which the question
    does not lead, those of DNAMEs (of that kind), and what was asked for if there are such. `behind`:
    likewise the owners of addresses and aliases in the sections behind it. `led`: all to which the
    question leads.
    """

    strays: tuple[DnsReply, ...] = ()
    behind: tuple[DnsReply, ...] = ()
    led: frozenset[str] = frozenset()


def read_beside(data: bytes) -> BesideAnswer | None:
    """Return what a response holds beside its answer; None: there may be more than can be read.

    What no resolver takes for a response, or reads no further, has nothing.
    """
    if len(data) < _HEADER.size:
        return BesideAnswer()
    _, flags, questions, *counts = _HEADER.unpack_from(data)
    end = _name_end(data, _HEADER.size)
    if not flags & _RESPONSE or questions != 1 or end is None or end + _QUESTION.size > len(data):
        return BesideAnswer()
    kind, _ = _QUESTION.unpack_from(data, end)
    # (No resolver follows a pointer of a question's.)
    if kind in _TRANSFERS or data[_HEADER.size] >= _POINTER:
        return BesideAnswer()
    records = _RecordsBeside(data, kind)
    return (
        records.read_all() if records.read(end + _QUESTION.size, counts[0], sum(counts)) else None
    )


class _RecordsBeside:
    """The records in all sections of a response to a question of this kind, by their owners."""

    def __init__(self, data: bytes, kind: int) -> None:
        self._data, self._kind = data, kind
        self._names = _Names(data, _MOST_BESIDE)
        self._in_answer: dict[str, None] = {}
        self._behind: dict[str, list[Address]] = {}
        self._aliases: dict[str, dict[str, None]] = {}
        self._redirects: dict[str, str] = {}

    def read(self, offset: int, answers: int, count: int) -> bool:
        """Read records, of any class, as far as they go; return whether all that is there was read."""
        for number in range(count):
            end = _name_end(self._data, offset)
            if end is None or end + _RECORD.size > len(self._data):
                break
            kind, _, _, length = _RECORD.unpack_from(self._data, end)
            owner, begins = offset, end + _RECORD.size
            offset = begins + length
            if offset > len(self._data):
                break
            self._names.left -= 1
            if number < answers or kind in (A, AAAA, DNAME) or kind in _TARGETS:
                name = self._names.name(owner)
                if name is None or len(self._in_answer) + len(self._behind) > _MOST_OWNERS:
                    return False
                if number < answers:
                    self._in_answer[name] = None
                self._note(name, kind, begins, length, behind=number >= answers)
        return self._names.left >= 0

    def _note(self, owner: str, kind: int, begins: int, length: int, *, behind: bool) -> None:
        octets = self._data[begins : begins + length]
        addresses: list[Address] = []
        if (kind, length) in ((A, 4), (AAAA, 16)):
            addresses = [address(octets)]
        elif kind in (_SVCB, _HTTPS):
            addresses = _hints(octets) or []
            self._names.left -= length // 4
        if behind:
            self._behind.setdefault(owner, []).extend(addresses)
        # (A target that cannot be read leads nowhere.)
        if kind == DNAME and (target := self._names.name(begins)) is not None:
            self._redirects[owner] = target
        leads = kind == _CNAME or (kind in _TARGETS and self._kind in (kind, _ANY))
        if leads and (target := self._names.name(begins + _TARGETS[kind])):
            self._aliases.setdefault(owner, {})[target] = None

    def read_all(self) -> BesideAnswer | None:
        asked = self._names.name(_HEADER.size)
        if asked is None or (led := self._names_led_to(asked)) is None:
            return None
        number = int.from_bytes(self._data[:2], "big")
        empty = DnsReply(number, NO_ERROR, False, asked, A)
        strays = [replace(empty, name=each) for each in self._in_answer if each not in led]
        strays += [replace(empty, name=each, kind=DNAME) for each in self._redirects]
        if self._redirects:
            strays.append(empty)
            self._behind |= {each: [] for each in led if each not in self._behind}
        behind = (
            replace(empty, name=name, addresses=tuple(dict.fromkeys(each)), aliases=tuple(aliases))
            for name, each in self._behind.items()
            if (aliases := self._aliases.get(name, {})) or each
        )
        return BesideAnswer(tuple(strays), tuple(behind), frozenset(led))

    def _names_led_to(self, asked: str) -> dict[str, None] | None:
        """Return all that the question leads to, also by DNAMEs; None: too many (a circle)."""
        led, due = {asked: None}, [asked]
        for each in due:
            for above, target in self._redirects.items():
                if not above or each.endswith(f".{above}"):
                    below = each.removesuffix(above).rstrip(".")
                    self._aliases.setdefault(each, {})[f"{below}.{target}".rstrip(".")] = None
            new = [one for one in self._aliases.get(each, ()) if one not in led]
            led |= dict.fromkeys(new)
            due += new
            if len(led) > _MOST_OWNERS:
                return None
        return led


def _name_end(data: bytes, offset: int) -> int | None:
    """Return where a name ends, whatever its bytes; None: nowhere."""
    first = offset
    while offset < len(data) and offset - first <= _MAX_NAME + 1:
        length = data[offset]
        if length >= _POINTER:
            return offset + 2
        if length > _MAX_LABEL:
            return None
        offset += 1 + length
        if not length:
            return offset
    return None


def _name(data: bytes, offset: int) -> tuple[str, int] | None:
    """Return the name at `offset` and where it ends; a pointer ends a name, and is not followed.

    None also for a name with other bytes than ASCII: not all programs see its end at the same place.
    """
    labels: list[str] = []
    first = offset
    while offset < len(data) and offset - first <= _MAX_NAME + 1:
        length = data[offset]
        if length >= _POINTER:
            return ".".join(labels), offset + 2
        offset += 1
        if not length:
            return ".".join(labels), offset
        label = data[offset : offset + length]
        if length > _MAX_LABEL or len(label) < length or 0 in label or not label.isascii():
            return None
        labels.append(label.decode().lower())
        offset += length
    return None


def _whole_name(data: bytes, offset: int) -> str | None:
    """Return the name at `offset` with what its pointers lead to, each of them further back."""
    return _Names(data).name(offset)


class _Names:
    """The names of a message, each of which is decoded once.

    Attributes:
        left: the steps that may still be made.
    """

    def __init__(self, data: bytes, most: int = _MOST_STEPS) -> None:
        self.left = min(most, len(data))
        self._data = data
        # By offset the name, its length in bytes, and the pointers on the way.
        self._known: dict[int, tuple[str, int, int]] = {}

    def name(self, offset: int) -> str | None:
        found = self._at(offset, _MOST_JUMPS)
        return found[0] if found else None

    def _at(self, offset: int, jumps: int) -> tuple[str, int, int] | None:
        """Return a name, its length in bytes, and the number of its pointers, each to further back."""
        if (known := self._known.get(offset)) is not None:
            return known
        data, at = self._data, offset
        labels: list[str] = []
        while at < len(data) and at - offset <= _MAX_NAME and self.left > 0:
            self.left -= 1
            size = data[at]
            if not size:
                found = ".".join(labels), at - offset, 0
                break
            if size >= _POINTER:
                target = int.from_bytes(data[at : at + 2], "big") & 0x3FFF
                rest = self._at(target, jumps - 1) if target < offset and jumps else None
                if rest is None:
                    return None
                name = ".".join((*labels, rest[0])) if rest[0] else ".".join(labels)
                found = name, at - offset + rest[1], rest[2] + 1
                break
            labels.append(data[at + 1 : at + 1 + size].decode("latin-1").lower())
            at += size + 1
        else:
            return None
        if found[1] > _MAX_NAME or found[2] > jumps:
            return None
        self._known[offset] = found
        return found


class _Records:
    """The contents of the records of an answer to a question of this kind.

    Attributes:
        names: where their names are read.
        addresses: all of them; a program may use each.
        aliases: all names that something leads to.
    """

    def __init__(self, data: bytes, kind: int) -> None:
        self._data, self._kind = data, kind
        self.names = _Names(data)
        self.addresses: list[Address] = []
        self.aliases: dict[str, None] = {}
        # By owner; what a program takes for a record and others do not has none.
        self._addresses: dict[str, list[Address]] = {}
        self._aliases: dict[str, dict[str, None]] = {}

    def read(self, offset: int, count: int) -> bool:
        """Read so many records; return whether that can be done.

        musl's programs take an address of any class, and see only the last byte of a record's kind.
        """
        data = self._data
        for _ in range(count):
            self.names.left -= 1
            name = _name(data, offset)
            if name is None or name[1] + _RECORD.size > len(data):
                return False
            owner = self.names.name(offset)
            kind, family, _, length = _RECORD.unpack_from(data, name[1])
            offset = name[1] + _RECORD.size + length
            octets = data[offset - length : offset]
            if len(octets) < length:
                return False
            if (kind & 0xFF, length) in ((A, 4), (AAAA, 16)):
                honest = family == _IN and kind in (A, AAAA)
                self._note_addresses(owner if honest else None, [address(octets)])
            elif family == _IN and kind in _TARGETS and length >= _TARGETS[kind]:
                self.names.left -= length // 4 if kind in (_SVCB, _HTTPS) else 0
                if self.names.left <= 0:
                    return False
                hints = _hints(octets) if kind in (_SVCB, _HTTPS) else []
                alias = self.names.name(offset - length + _TARGETS[kind])
                if hints is None or alias is None:  # programs may read it all the same
                    return False
                self._note_addresses(owner, hints)
                if alias and (kind == _CNAME or self._kind in (kind, _ANY)):
                    self.aliases[alias] = None
                    if owner is not None:
                        self._aliases.setdefault(owner, {})[alias] = None
            if self.names.left <= 0:
                return False
        return len(self.aliases) <= (_MOST_SERVERS if self._kind == _SRV else _MOST_LED)

    def owners(self, asked: str) -> tuple[RecordOwner, ...]:
        """Return the other names with records: with all that they lead to here, and its addresses.

        Hints of a service are its owner's, who may point to any target. Of names to which nothing leads,
        nothing is known.
        """
        found = []
        for name in self.aliases:
            led = self._names_led_to(name)
            self.names.left -= sum(
                1 + len(self._addresses.get(one, ())) + len(self._aliases.get(one, ()))
                for one in led
            )
            if self.names.left <= 0:
                return ()
            own = [each for one in led for each in self._addresses.get(one, ())]
            if name != asked and (own or len(led) > 1):
                found.append(RecordOwner(name, tuple(dict.fromkeys(own)), tuple(led[1:])))
        return tuple(found)

    def _note_addresses(self, owner: str | None, addresses: list[Address]) -> None:
        self.names.left -= len(addresses)
        self.addresses += addresses
        if owner is not None and addresses:
            self._addresses.setdefault(owner, []).extend(addresses)

    def _names_led_to(self, name: str) -> list[str]:
        """Return a name, and all that it leads to."""
        found, due = {name: None}, [name]
        for each in due:
            new = [one for one in self._aliases.get(each, ()) if one not in found]
            found |= dict.fromkeys(new)
            due += dict.fromkeys(new)
        return due


def _hints(octets: bytes) -> list[Address] | None:
    """Return the addresses in a service's record: priority, target, and parameters by number.

    None: the target's end is not found.
    """
    found: list[Address] = []
    if (name := _name(octets, 2)) is None:
        return None
    offset = name[1]
    while offset + 4 <= len(octets):
        key, length = struct.unpack_from("!2H", octets, offset)
        value = octets[offset + 4 : offset + 4 + length]
        offset += 4 + length
        if len(value) == length and key == _IPV4_HINT:
            found += [address(value[at : at + 4]) for at in range(0, length - 3, 4)]
        elif len(value) == length and key == _IPV6_HINT:
            found += [address(value[at : at + 16]) for at in range(0, length - 15, 16)]
    return found


def is_public(where: Address) -> bool:
    return not any(where in network for network in _NOT_PUBLIC)


def fault(data: bytes, number: int, name: str, kind: int = A) -> DnsFault | None:
    """Return the fault of a datagram as the answer to question `number` for `name`; None: no fault.

    That a name does not exist is an honest answer. A FOREIGN one is to be ignored, since the right
    one may still come; any other fault ends the wait without a time.
    """
    reply = parse(data)
    asked = name.rstrip(".").lower()
    if reply is None or (reply.number, reply.name, reply.kind) != (number, asked, kind):
        return DnsFault.FOREIGN
    if reply.truncated:
        return DnsFault.TRUNCATED
    if reply.code not in (NO_ERROR, _NO_SUCH_NAME):
        return DnsFault.REFUSED
    unreal = asked.endswith(".invalid") and reply.addresses
    if unreal or not all(map(is_public, reply.addresses)):
        return DnsFault.HIJACKED
    return None


@dataclass(slots=True)
class _Stream:
    """A stream's first number, its socket and user, the next number, and the last bytes.

    `part` is what was received of a message.
    """

    first: int
    cookie: int
    user: int
    expected: int
    part: bytes = b""
    kept: bytes = b""


class AnswerStreams:
    """The streams whose beginning was seen; of each user the one read longest ago is forgotten first.

    What comes of a stream that is not known is in no message: it may begin anywhere in one.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[FlowKey, _Stream] = OrderedDict()

    def begin(self, key: FlowKey, first: int, cookie: int = 0, user: int = 0) -> bool:
        """Note at which number a socket's stream begins; False: it has begun elsewhere.

        The kernel may have taken either of two beginnings.
        """
        first &= _NUMBERS
        known = self._known.get(key)
        if known is not None and known.cookie == cookie:
            return known.first == first
        self._known[key] = _Stream(first, cookie, user, first)
        self._known.move_to_end(key)
        own = [each for each, stream in self._known.items() if stream.user == user]
        for each in own[:-_MOST_STREAMS]:
            del self._known[each]
        return True

    def reading(self, key: FlowKey) -> Reading | None:
        """Return what was read of a stream; None: it is not known."""
        stream = self._known.get(key)
        return None if stream is None else (stream.cookie, stream.expected, stream.part)

    def restore(self, key: FlowKey, reading: Reading) -> None:
        """Forget what was read of a stream since `reading`; an earlier one may have been restored."""
        cookie, expected, part = reading
        stream = self._known.get(key)
        if stream is None or stream.cookie != cookie:
            return
        since = (stream.expected - expected) & _NUMBERS
        if since <= _NUMBERS // 2:
            stream.expected, stream.part = expected, part
            stream.kept = stream.kept[: max(len(stream.kept) - since, 0)]

    def messages(self, key: FlowKey, segment: int, payload: bytes) -> list[bytes] | None:
        """Return the messages that end with a segment.

        None: an earlier one is missing, or it repeats other bytes than were read. Its receiver may not
        have taken those, and would take these.
        """
        if (stream := self._known.get(key)) is None:
            return None
        kept = stream.kept
        known = (stream.expected - segment) & _NUMBERS
        if known > len(kept) or not payload.startswith(kept[len(kept) - known :][: len(payload)]):
            return None
        buffer = stream.part + payload[known:]
        found, at = [], 0
        while len(buffer) >= at + _LENGTH.size:
            end = at + _LENGTH.size + _LENGTH.unpack_from(buffer, at)[0]
            if len(buffer) < end:
                break
            found.append(buffer[at + _LENGTH.size : end])
            at = end
        stream.kept = (kept + payload[known:])[-_KEPT_BYTES:]
        stream.expected = (segment + max(len(payload), known)) & _NUMBERS
        stream.part = buffer[at:]
        self._known.move_to_end(key)
        return found
