"""The gateway's bandwidth map in its file, and the questions for it."""

import pytest
from kit.neighbours import GATEWAY, START_S, Everyone, key_of, request_certificate

from cedos.apps.sharing.gateway_sharing import GatewaySharing, HelperRates
from cedos.apps.sharing.protocol.certificates import CertificateAuthority
from cedos.apps.sharing.questions import (
    AskRates,
    GivenRates,
    SharingRefused,
    pack_question,
    read_answer,
    read_question,
)
from cedos.apps.sharing.store import SharingStore

BOB, CYD = key_of("bob").public, key_of("cyd").public
SESSION = b"s" * 32


class Session:
    """A session of a host; its key is what the gateway goes by."""

    peer_key = SESSION


def test_rates_survive_in_the_file(tmp_path):
    rates = HelperRates(tmp_path / "rates", b"secret")
    rates.learn(BOB, 4e6, START_S)
    rates.save()
    again = HelperRates(tmp_path / "rates", b"secret")
    assert again.rate_bps(BOB, START_S) == 4e6
    assert again.rate_bps(CYD, START_S) is None


def test_a_busy_helper_counts_once_in_ten_seconds(tmp_path):
    rates = HelperRates(tmp_path / "rates", b"secret")
    for step in range(100):
        rates.learn(BOB, 4e6 if step == 0 else 1e6, START_S + step / 11)
    assert rates.rate_bps(BOB, START_S) == 4e6
    rates.learn(BOB, 2e6, START_S + 10)
    assert rates.rate_bps(BOB, START_S + 10) == 3e6


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x93\x01\x02\x03"])
def test_a_damaged_file_is_left_out(tmp_path, content):
    path = tmp_path / "rates"
    path.write_bytes(content)
    rates = HelperRates(path, b"secret")
    assert rates.rate_bps(BOB, START_S) is None
    rates.learn(BOB, 4e6, START_S)
    rates.save()
    assert HelperRates(path, b"secret").rate_bps(BOB, START_S) == 4e6


def test_the_gateway_tells_registered_hosts_alone(tmp_path):
    store = SharingStore(tmp_path / "sharing.db")
    known = HelperRates(tmp_path / "helper-rates", b"")
    known.learn(BOB, 4e6, START_S)
    known.save()
    gateway = GatewaySharing(GATEWAY, store, lambda: (), Everyone, lambda: START_S)
    question = pack_question(AskRates((BOB, CYD)))
    refused = read_answer(gateway.answer(Session(), question) or b"")
    assert isinstance(refused, SharingRefused)
    wish = request_certificate(key_of("ann"), SESSION, "ann", GATEWAY.public, START_S)
    store.register(CertificateAuthority(GATEWAY), wish, SESSION, START_S)
    assert read_answer(gateway.answer(Session(), question) or b"") == GivenRates((4e6, None))
    store.close()


def test_a_question_has_a_bound():
    with pytest.raises(ValueError, match="64"):
        read_question(pack_question(AskRates((BOB,) * 65)))
