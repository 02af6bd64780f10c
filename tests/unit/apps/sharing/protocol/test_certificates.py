"""Certificates of neighbours: their end, and lists of revocations."""

import msgspec
import pytest
from kit.neighbours import GATEWAY, START_S, key_of, trust

from cedos.apps.sharing.protocol.certificates import (
    LIFETIME_S,
    CertificateAuthority,
    UntrustedError,
    request_certificate,
)

SESSION = b"s" * 32
AUTHORITY = CertificateAuthority(GATEWAY)


def wish(name="ann", now_s=START_S):
    return request_certificate(key_of(name), SESSION, name, GATEWAY.public, now_s)


def test_a_certificate_names_both_keys_and_holds_for_its_time():
    data = AUTHORITY.issue(wish(), SESSION, 7, START_S)
    found = trust().read(data, START_S)
    assert (found.serial, found.name, found.session) == (7, "ann", SESSION)
    assert found.host == key_of("ann").public
    assert trust().read(data, START_S + LIFETIME_S - 1) == found
    for then in (START_S + LIFETIME_S, START_S - 3600):
        with pytest.raises(UntrustedError, match="no longer holds"):
            trust().read(data, then)


def test_a_request_is_refused_without_both_keys():
    with pytest.raises(UntrustedError, match="another host's session"):
        AUTHORITY.issue(wish(), b"t" * 32, 1, START_S)
    forged = wish()[:-64] + key_of("eve").sign(b"cedos share certificate request 1", wish()[:-64])
    with pytest.raises(UntrustedError, match="without the host's signature"):
        AUTHORITY.issue(forged, SESSION, 1, START_S)


def test_a_request_is_refused_for_another_gateway_or_time():
    with pytest.raises(UntrustedError, match="another gateway"):
        CertificateAuthority(key_of("other")).issue(wish(), SESSION, 1, START_S)
    with pytest.raises(UntrustedError, match="another time"):
        AUTHORITY.issue(wish(now_s=START_S - 3600), SESSION, 1, START_S)


@pytest.mark.parametrize("name", ["", "a" * 64, "a\x1b[2J", "a\nb"])
def test_a_name_is_short_and_plain(name):
    with pytest.raises(UntrustedError, match="no certificate request"):
        AUTHORITY.issue(wish(name), SESSION, 1, START_S)


def test_a_longer_life_cannot_be_written_into_a_certificate():
    data = AUTHORITY.issue(wish(), SESSION, 7, START_S)
    found = trust().read(data, START_S)
    longer = msgspec.msgpack.encode(msgspec.structs.replace(found, expires_s=2**40)) + data[-64:]
    with pytest.raises(UntrustedError, match="did not sign"):
        trust().read(longer, START_S)


def test_a_revoked_certificate_no_longer_holds_though_it_was_verified_before():
    """An older list, if it is replayed, does not bring it back."""
    known = trust()
    data = AUTHORITY.issue(wish(), SESSION, 7, START_S)
    known.read(data, START_S)
    for revoked, at_s in (((7, 9), START_S + 10), ((), START_S)):
        known.revoke(AUTHORITY.revocations(revoked, at_s))
        with pytest.raises(UntrustedError, match="no longer holds"):
            known.read(data, START_S + 10)


def test_a_list_of_revocations_that_the_gateway_did_not_sign_is_refused():
    with pytest.raises(UntrustedError, match="did not sign"):
        trust().revoke(CertificateAuthority(key_of("eve")).revocations((7,), START_S))
