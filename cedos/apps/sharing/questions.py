"""A host's questions to the gateway about sharing, and their answers, over a session. Pure.

The session proves who asks. A question is answered once; a host that hears nothing asks again.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from cedos.apps.sharing.protocol.certificates import MOST_CERTIFICATE_BYTES, PublicKey

MOST_BYTES: Final = 60_000
_Datagram = Annotated[bytes, Meta(max_length=1200)]


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A question or an answer. ValueError: its bytes are none."""


class AskFacts(_Message, frozen=True, tag=1):
    """A question for the gateway's signing key and the certificates that it has withdrawn."""


class AskCertificate(_Message, frozen=True, tag=2):
    """A request for a certificate (`request_certificate`)."""

    request: Annotated[bytes, Meta(max_length=MOST_CERTIFICATE_BYTES)]


_Source = Annotated[bytes, Meta(min_length=4, max_length=4)]


class DeclarePath(_Message, frozen=True, tag=3):
    """The statement that paths from this address are carried by the helper of a contract."""

    source: _Source
    join: _Datagram
    confirm: _Datagram


class AskReceipts(_Message, frozen=True, tag=4):
    """A question for the receipts about this host with higher serials."""

    after: Annotated[int, Meta(ge=0, le=2**53)]


class AskRates(_Message, frozen=True, tag=5):
    """A question for what the gateway's bandwidth map says of helpers' paths."""

    helpers: Annotated[tuple[PublicKey, ...], Meta(max_length=64)]


class AskWaiting(_Message, frozen=True, tag=6):
    """A question for what waits at the gateway for paths from these addresses of the asking host."""

    sources: Annotated[tuple[_Source, ...], Meta(max_length=64)]


class GatewayFacts(_Message, frozen=True, tag=11):
    """The gateway's Ed25519 key, and its signed `Revocations`."""

    public: Annotated[bytes, Meta(min_length=32, max_length=32)]
    revocations: bytes


class GivenCertificate(_Message, frozen=True, tag=12):
    certificate: bytes


class PathDeclared(_Message, frozen=True, tag=13):
    pass


class GivenReceipts(_Message, frozen=True, tag=14):
    receipts: tuple[bytes, ...]


# No path is faster, and no answer is infinite or no number.
_Rate = Annotated[float, Meta(ge=0.0, le=1e15)]


class GivenRates(_Message, frozen=True, tag=16):
    """The rates in bit/s, in the order of the question; None: there is no history."""

    rates_bps: tuple[_Rate | None, ...]


class GivenWaiting(_Message, frozen=True, tag=17):
    """The bytes that no kernel there has acknowledged, in the order of the question."""

    waiting_bytes: tuple[Annotated[int, Meta(ge=0, le=2**53)], ...]


class SharingRefused(_Message, frozen=True, tag=15):
    """A refusal, and why."""

    why: str


Asked = AskFacts | AskCertificate | DeclarePath | AskReceipts | AskRates | AskWaiting
Answered = (
    GatewayFacts
    | GivenCertificate
    | PathDeclared
    | GivenReceipts
    | GivenRates
    | GivenWaiting
    | SharingRefused
)
_QUESTIONS: Final = msgspec.msgpack.Decoder(Asked)
_ANSWERS: Final = msgspec.msgpack.Decoder(Answered)


def pack_question(message: Asked) -> bytes:
    return msgspec.msgpack.encode(message)


def pack_answer(message: Answered) -> bytes:
    return msgspec.msgpack.encode(message)


def read_question(data: bytes) -> Asked:
    """Return a question. ValueError: it is none."""
    read: Asked = _read(_QUESTIONS, data)
    return read


def read_answer(data: bytes) -> Answered:
    """Return an answer. ValueError: it is none."""
    read: Answered = _read(_ANSWERS, data)
    return read


def _read(decoder: "msgspec.msgpack.Decoder[Any]", data: bytes) -> Any:
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data)} bytes are too many")
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error
