"""Certificates: the gateway's word that a host may request, help and bill. Pure.

A host asks with a `CertificateRequest`, signed with the key that is to be certified, over a session with
the gateway. The session proves the host's session key; both keys are in the certificate, so that the
gateway knows whose bytes a session carries. A certificate ends by its time, or when the gateway's signed
`Revocations` name its number.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from cedos.apps.sharing.protocol.signing import (
    PUBLIC_BYTES,
    SIGNATURE_BYTES,
    SigningKey,
    is_signed,
)

PublicKey = Annotated[bytes, Meta(min_length=PUBLIC_BYTES, max_length=PUBLIC_BYTES)]
Seconds = Annotated[int, Meta(ge=0, le=2**40)]
Serial = Annotated[int, Meta(ge=1, le=2**53)]
HostName = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
MOST_CERTIFICATE_BYTES: Final = 512
LIFETIME_S: Final = 30 * 86_400
MOST_REVOKED: Final = 4096
_SKEW_S: Final = 60
_CERTIFICATE: Final = b"cedos share certificate 1"
_REQUEST: Final = b"cedos share certificate request 1"
_REVOCATIONS: Final = b"cedos share revocations 1"


class UntrustedError(Exception):
    """A datagram, certificate or receipt that proves nothing; says why."""


class Certificate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A host that the gateway has registered.

    Attributes:
        serial: the gateway's number of the certificate.
        host: the host's Ed25519 key, which signs datagrams.
        session: the host's X25519 key, which secures its sessions.
        name: what people call the host.
        gateway: the Ed25519 key of the gateway that signed this.
    """

    serial: Serial
    host: PublicKey
    session: PublicKey
    name: HostName
    issued_s: Seconds
    expires_s: Seconds
    gateway: PublicKey


class CertificateRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A host's wish to be certified by one gateway."""

    host: PublicKey
    session: PublicKey
    name: HostName
    gateway: PublicKey
    sent_s: Seconds


class Revocations(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The numbers of certificates that a gateway has withdrawn before their time."""

    gateway: PublicKey
    made_s: Seconds
    serials: Annotated[tuple[Serial, ...], Meta(max_length=MOST_REVOKED)]


SignedStruct = TypeVar("SignedStruct", bound=msgspec.Struct)


def seal(value: msgspec.Struct, purpose: bytes, key: SigningKey) -> bytes:
    """Return a struct as bytes, followed by its signature."""
    body = msgspec.msgpack.encode(value)
    return body + key.sign(purpose, body)


def open_sealed(
    data: bytes, kind: type[SignedStruct], most_bytes: int, what: str
) -> tuple[SignedStruct, bytes]:
    """Return the struct in bytes of `seal`, and its body; the signature is not checked.

    Raises:
        UntrustedError: these bytes hold no such struct.
    """
    if not SIGNATURE_BYTES < len(data) <= most_bytes:
        raise UntrustedError(f"a {what} of {len(data)} bytes")
    body = data[:-SIGNATURE_BYTES]
    try:
        return msgspec.msgpack.decode(body, type=kind), body
    except (ValueError, RecursionError) as error:
        raise UntrustedError(f"no {what}: {error}") from error


def request_certificate(
    key: SigningKey, session: bytes, name: str, gateway: bytes, now_s: float
) -> bytes:
    """Return a signed request, to be sent over a session to the gateway."""
    wish = CertificateRequest(key.public, session, name, gateway, int(now_s))
    return seal(wish, _REQUEST, key)


class CertificateAuthority:
    """The gateway's issuing of certificates, and their revocation. The store is the caller's."""

    def __init__(self, key: SigningKey, *, lifetime_s: int = LIFETIME_S) -> None:
        self.key, self.lifetime_s = key, lifetime_s

    def issue(self, request: bytes, session: bytes, serial: int, now_s: float) -> bytes:
        """Return a certificate for a request that came over a session with this key.

        Raises:
            UntrustedError: the request is malformed, old, for another gateway, or lacks a key's proof.
        """
        wish, body = open_sealed(
            request, CertificateRequest, MOST_CERTIFICATE_BYTES, "certificate request"
        )
        if wish.gateway != self.key.public:
            raise UntrustedError("a certificate request for another gateway")
        if wish.session != session:
            raise UntrustedError("a certificate request over another host's session")
        if abs(now_s - wish.sent_s) > _SKEW_S:
            raise UntrustedError("a certificate request of another time; set the host's clock")
        if not is_signed(wish.host, _REQUEST, body, request[-SIGNATURE_BYTES:]):
            raise UntrustedError("a certificate request without the host's signature")
        issued_s = int(now_s)
        certificate = Certificate(
            serial, wish.host, session, wish.name, issued_s, issued_s + self.lifetime_s,
            self.key.public,
        )  # fmt: skip
        return seal(certificate, _CERTIFICATE, self.key)

    def revocations(self, serials: tuple[int, ...], now_s: float) -> bytes:
        """Return the signed list of certificates withdrawn; those that have expired need not be in it."""
        made = Revocations(self.key.public, int(now_s), tuple(sorted(set(serials))))
        return seal(made, _REVOCATIONS, self.key)


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """A host's own key and certificate, as it signs datagrams."""

    key: SigningKey
    certificate: bytes

    @property
    def gateway(self) -> bytes:
        return open_sealed(self.certificate, Certificate, MOST_CERTIFICATE_BYTES, "certificate")[
            0
        ].gateway


class Trust:
    """The certificates that a host accepts: those of one gateway, in time and not revoked.

    Verified ones are remembered, so that a known peer's datagram costs one signature, not two.
    """

    _REMEMBERED: Final = 256

    def __init__(self, gateway: bytes) -> None:
        self.gateway = gateway
        self._verified: OrderedDict[bytes, Certificate] = OrderedDict()
        self._revoked: frozenset[int] = frozenset()
        self._revoked_made_s = -1

    def read(self, data: bytes, now_s: float) -> Certificate:
        """Return a certificate that holds now.

        Raises:
            UntrustedError: it is malformed, of another gateway, forged, expired or revoked.
        """
        digest = sha256(data).digest()
        certificate = self._verified.get(digest)
        if certificate is None:
            certificate, body = open_sealed(
                data, Certificate, MOST_CERTIFICATE_BYTES, "certificate"
            )
            if certificate.gateway != self.gateway:
                raise UntrustedError("a certificate of another gateway")
            if not is_signed(self.gateway, _CERTIFICATE, body, data[-SIGNATURE_BYTES:]):
                raise UntrustedError("a certificate that the gateway did not sign")
            self._verified[digest] = certificate
            if len(self._verified) > self._REMEMBERED:
                self._verified.popitem(last=False)
        self._verified.move_to_end(digest)
        if not self.holds(certificate, now_s):
            raise UntrustedError(f"a certificate of {certificate.name} that no longer holds")
        return certificate

    def holds(self, certificate: Certificate, now_s: float) -> bool:
        """Return whether a verified certificate is in time and not revoked."""
        in_time = certificate.issued_s - _SKEW_S <= now_s < certificate.expires_s
        return in_time and certificate.serial not in self._revoked

    def revoke(self, data: bytes) -> None:
        """Take a newer list of revocations; an older one, replayed, changes nothing.

        Raises:
            UntrustedError: the gateway did not sign it.
        """
        told, body = open_sealed(data, Revocations, MOST_REVOKED * 9 + 256, "list of revocations")
        if told.gateway != self.gateway or not is_signed(
            self.gateway, _REVOCATIONS, body, data[-SIGNATURE_BYTES:]
        ):
            raise UntrustedError("a list of revocations that the gateway did not sign")
        if told.made_s > self._revoked_made_s:
            self._revoked, self._revoked_made_s = frozenset(told.serials), told.made_s


class AvoidedClients:
    """The clients that failed a host, for a time that doubles with each failure soon after another one.

    A client of the gateway may have several certificates, with as many keys. Its session's key is one.
    """

    _MOST: Final = 256

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s, self._most_s = first_s, most_s
        # until when, for how long
        self._clients: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def holds(self, certificate: Certificate, now_s: float) -> bool:
        """Return whether the client of a certificate is avoided now."""
        return self._clients.get(certificate.session, (-math.inf, 0.0))[0] > now_s

    def add(self, certificate: Certificate, now_s: float, *, once_free: bool = False) -> None:
        """Avoid a client; `once_free`: the first failure costs nothing."""
        until_s, pause_s = self._clients.get(certificate.session, (-math.inf, 0.0))
        # One that has done well for long begins anew.
        again = now_s - until_s < self._most_s
        pause_s = min(2 * pause_s, self._most_s) if again else self._first_s
        until_s = now_s + (pause_s if again or not once_free else 0.0)
        self._clients[certificate.session] = until_s, pause_s
        self._clients.move_to_end(certificate.session)
        if len(self._clients) > self._MOST:
            self._clients.popitem(last=False)
