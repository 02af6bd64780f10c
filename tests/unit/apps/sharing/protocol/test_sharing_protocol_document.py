"""The written protocol of sharing: its vectors are computed again, its numbers are the program's."""

import re
from hashlib import sha256

import msgspec
import pytest

from cedos.apps.sharing.protocol import accounting, helper, messages, requestor, signing
from cedos.apps.sharing.protocol.certificates import (
    CertificateAuthority,
    HostIdentity,
    Trust,
    request_certificate,
)
from cedos.apps.sharing.protocol.messages import (
    ConfirmMessage,
    Endpoint,
    HelloAckMessage,
    HelloMessage,
    InviteMessage,
    JoinMessage,
    LeaveMessage,
    LeaveReason,
    pack,
    unpack,
)
from cedos.apps.sharing.protocol.receipts import Receipt, read_contract, read_receipt, sign_receipt
from cedos.apps.sharing.protocol.signing import SigningKey
from cedos.selector.sharing import NetworkType
from emu import ROOT

DOCUMENT = (ROOT / "docs" / "sharing-protocol.md").read_text()
NOW_S = 1_800_000_000
NOW_US = NOW_S * 10**6
GATEWAY, ANN, BOB = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
SESSIONS = {"ann": bytes([4]) * 32, "bob": bytes([5]) * 32}
TRUST = Trust(GATEWAY.public)


def registered(name, key, serial):
    session = SESSIONS[name]
    request = request_certificate(key, session, name, GATEWAY.public, NOW_S)
    issued = CertificateAuthority(GATEWAY).issue(request, session, serial, NOW_S)
    return request, HostIdentity(key, issued)


def vectors():
    """Return every vector of the document by its name, in hexadecimal."""
    request, ann = registered("ann", ANN, 1)
    _, bob = registered("bob", BOB, 2)
    nonce = [bytes([number]) * 16 for number in range(0xA0, 0xA8)]
    invite = InviteMessage(NOW_US, nonce[0], 8_000_000)
    join = JoinMessage(
        NOW_US + 1000, nonce[1], ANN.public, invite.nonce, 500_000, "EUR", 500_000_000, 4_000_000,
        NetworkType.LTE, 14_400, bytes([10, 0, 0, 1]),
        Endpoint(bytes([198, 51, 100, 1]), 443),
    )  # fmt: skip
    joined = pack(bob, join)
    confirm = ConfirmMessage(
        NOW_US + 2000, nonce[2], BOB.public, join.nonce, sha256(joined).digest(),
        bytes([10, 0, 0, 100]),
    )  # fmt: skip
    confirmed = pack(ann, confirm)
    contract = read_contract(joined, confirmed, TRUST, NOW_S)
    receipt = Receipt(
        GATEWAY.public, 1, ANN.public, BOB.public, contract.number, NOW_S, NOW_S + 10, 1_000_000,
        4_000_000, 5_000_000, 2_500, "EUR",
    )  # fmt: skip
    bodies = {
        "Invite": invite,
        "Join": join,
        "Confirm": confirm,
        "Leave": LeaveMessage(NOW_US + 3000, nonce[3], BOB.public, LeaveReason.DONE),
        "Hello": HelloMessage(NOW_US + 4000, nonce[4], BOB.public),
        "Hello-ACK": HelloAckMessage(NOW_US + 5000, nonce[5], ANN.public, nonce[4], 400_000_000),
    }
    found = {
        "request of ann": request,
        "certificate of ann": ann.certificate,
        "signature of the Invite's datagram": pack(ann, invite)[-64:],
        "signature of the Join's datagram": joined[-64:],
        "contract": contract.number,
        "receipt": sign_receipt(receipt, GATEWAY),
    }
    found |= {f"body of the {name}": msgspec.msgpack.encode(it) for name, it in bodies.items()}
    return {name: value.hex() for name, value in found.items()}


def written():
    """Return the vectors of the document: a name, then hexadecimal digits on one or several lines."""
    block = DOCUMENT.partition("## Test vectors")[2].partition("```")[2].partition("```")[0]
    parts = re.findall(r"^([A-Za-z' -]+):((?:\s+[0-9a-f]+)+)$", block, re.M)
    return {name: re.sub(r"\s", "", digits) for name, digits in parts}


@pytest.mark.parametrize("name", list(vectors()))
def test_the_program_computes_the_vector(name):
    assert written()[name] == vectors()[name]


def test_no_other_vector_is_written():
    assert written().keys() == vectors().keys()


def test_the_vectors_are_accepted():
    known = {name: bytes.fromhex(digits) for name, digits in written().items()}
    certificate = known["certificate of ann"]
    head = b"CSHR\3" + len(certificate).to_bytes(2, "big")
    signature = known["signature of the Invite's datagram"]
    invite = unpack(head + certificate + known["body of the Invite"] + signature)
    assert invite.verify_sender(TRUST, NOW_S).name == "ann"
    assert read_receipt(known["receipt"], GATEWAY.public).amount == 2_500


def test_the_times_in_the_document_are_those_of_the_program():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) ", DOCUMENT, re.M))
    assert len(rows) == 22
    for name, value in rows.items():
        module = {"period_s": accounting, "window_s": signing}.get(name, requestor)
        if name.startswith("helper_"):
            module = helper
        assert getattr(module, name.removeprefix("helper_").upper()) == float(value)


def test_the_groups_the_port_and_the_reasons_are_those_of_the_program():
    assert f"`{messages.GROUP}`" in DOCUMENT
    assert f"port {messages.PORT}" in DOCUMENT
    assert messages.PORT < 1024  # no user may take it before the helper
    reasons = re.findall(
        r"(\d) ([a-z ]+?)[,.]", DOCUMENT.partition("Reasons: ")[2].split("\n\n")[0]
    )
    assert {int(number): words.upper().replace(" ", "_") for number, words in reasons} == {
        each.value: each.name for each in LeaveReason
    }
