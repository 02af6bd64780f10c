"""A host's own key and certificate for sharing, beside its session's key."""

import os
import secrets
import socket
import time
from pathlib import Path
from typing import Final, TypeVar

from cedos.apps.sharing.protocol.certificates import (
    HostIdentity,
    Trust,
    UntrustedError,
    request_certificate,
)
from cedos.apps.sharing.protocol.signing import SigningKey
from cedos.apps.sharing.questions import (
    AskCertificate,
    AskFacts,
    GatewayFacts,
    GivenCertificate,
    GivenRates,
    GivenReceipts,
    GivenWaiting,
    PathDeclared,
    SharingRefused,
    pack_question,
    read_answer,
)
from cedos.errors import SharingError
from cedos.session import keys

AnswerKind = TypeVar(
    "AnswerKind",
    GatewayFacts,
    GivenCertificate,
    PathDeclared,
    GivenReceipts,
    GivenRates,
    GivenWaiting,
)
_KEY: Final = "share.key"
_CERTIFICATE: Final = "share.certificate"
_GATEWAY_KEY: Final = "share-gateway.key"


class SharingClock:
    """A clock of Unix seconds that never goes back, and goes on while the host sleeps."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def now_s(self) -> float:
        return self._offset_s + time.clock_gettime(time.CLOCK_BOOTTIME)


def own_signing_key() -> SigningKey:
    """Return this user's key, made at the first call. ConfigError: the file cannot be used."""
    return SigningKey(keys.own_key(keys.folder() / _KEY).private)


def gateway_signing_key() -> SigningKey:
    """Return the key of this user's gateway, made at the first call. ConfigError as above."""
    return SigningKey(keys.own_key(keys.folder() / _GATEWAY_KEY).private)


def own_name() -> str:
    """Return what neighbours call this host: its host name, or less of it."""
    name = "".join(letter for letter in socket.gethostname() if letter.isprintable())
    return name[:63] or "host"


def read_identity(now_s: float) -> tuple[HostIdentity, Trust]:
    """Return who this host is. SharingError: it is not registered, or not any more."""
    path = keys.folder() / _CERTIFICATE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise SharingError(
            "this host is not registered; `sudo cedos share register` asks the gateway, over any network"
        ) from None
    except OSError as error:
        raise SharingError(f"{path}: {error.strerror or error}") from error
    try:
        identity = HostIdentity(own_signing_key(), data)
        trust = Trust(identity.gateway)
        certified = trust.read(data, now_s)
    except UntrustedError as error:
        raise SharingError(
            f"{path}: {error}; `sudo cedos share register` makes a new one"
        ) from error
    if certified.host != identity.key.public:
        raise SharingError(f"{path} is of another key; `sudo cedos share register` makes a new one")
    return identity, trust


def facts_question() -> bytes:
    return pack_question(AskFacts())


def certificate_question(answer: bytes, session: bytes, name: str, now_s: float) -> bytes:
    """Return the question for a certificate, after the answer to `facts_question`.

    `session`: the public key by which the gateway knows this client. SharingError: it shares nothing.
    """
    facts = expect_answer(answer, GatewayFacts)
    request = request_certificate(own_signing_key(), session, name, facts.public, now_s)
    return pack_question(AskCertificate(request))


def keep_certificate(answer: bytes, facts_answer: bytes, now_s: float) -> float:
    """Write the certificate of an answer; return when it expires. SharingError: it is none."""
    facts, given = (
        expect_answer(facts_answer, GatewayFacts),
        expect_answer(answer, GivenCertificate),
    )
    try:
        made = Trust(facts.public).read(given.certificate, now_s)
    except UntrustedError as error:
        raise SharingError(f"the gateway gave no certificate that holds: {error}") from error
    _write(keys.folder() / _CERTIFICATE, given.certificate)
    return float(made.expires_s)


def expect_answer(data: bytes, kind: type[AnswerKind]) -> AnswerKind:
    """Return the gateway's answer. SharingError: it refuses, or answers something else."""
    try:
        answer = read_answer(data)
    except ValueError as error:
        raise SharingError(f"the gateway's answer cannot be read: {error}") from error
    if isinstance(answer, SharingRefused):
        raise SharingError(f"the gateway refuses: {answer.why}")
    if not isinstance(answer, kind):
        raise SharingError("the gateway answered something else than was asked")
    return answer


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(data)
        draft.replace(path)
    except OSError as error:
        raise SharingError(f"{path}: {error.strerror or error}") from error
