"""A Redis that is reached by TLS: its certificate is its own, and of an authority that is trusted."""

import datetime
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kit.redis_server import RedisServer
from structlog.testing import capture_logs

from cedos.proxy.gateway.nodes.redis_link import RedisLink
from cedos.proxy.gateway.nodes.redis_target import RedisTarget

pytestmark = pytest.mark.anyio
_ANSWER = "return redis.call('PING')"


class Authority:
    """Signs certificates, and writes them to `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        made = self._signed(self._name, self._key.public_key(), days=2)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        signed = made.sign(self._key, hashes.SHA256())
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def _signed(self, whose: x509.Name, key: Any, days: int) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(whose)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=3))
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    def certify(self, host: str, days: int = 2) -> tuple[str, str]:
        """Files of a certificate and its key, for an address or a name."""
        key = ec.generate_private_key(ec.SECP256R1())
        whose = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
        try:
            name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        made = self._signed(whose, key.public_key(), days)
        made = made.add_extension(x509.SubjectAlternativeName([name]), critical=False)
        signed = made.sign(self._key, hashes.SHA256())
        certificate, secret = self._folder / "redis.crt", self._folder / "redis.key"
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(certificate), str(secret)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[tuple[str, str]], int]]:
    server = RedisServer(tmp_path)

    def begin(files: tuple[str, str]) -> int:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        server.start(
            *("--tls-port", str(port), "--tls-cert-file", files[0], "--tls-key-file", files[1]),
            *("--tls-auth-clients", "no", "--tls-ca-cert-file", files[0]),
        )
        return port

    yield begin
    server.close()


async def answers(target: RedisTarget) -> bool:
    link = RedisLink(target, lambda: None)
    try:
        return await link.begin() and await link.run(_ANSWER, [("x", ())]) == [b"PONG"]
    finally:
        await link.close()


def target(port: int, ca_file: Path | None, host: str = "127.0.0.1") -> RedisTarget:
    return RedisTarget("", host, port, 0, tls=True, ca_file=ca_file)


async def test_its_authority_is_in_a_file(start: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    port = start(authority.certify("127.0.0.1"))
    assert await answers(target(port, authority.file))


async def test_its_authority_is_one_of_the_systems(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    port = start(authority.certify("127.0.0.1"))
    monkeypatch.setenv(ssl.get_default_verify_paths().openssl_cafile_env, str(authority.file))
    assert await answers(target(port, None))
    assert not await answers(target(port, other.file)), "a file stands in for the system's"


@pytest.mark.parametrize(
    ("host", "days", "ours", "says"),
    [
        ("127.0.0.1", 2, False, "unable to get local issuer certificate"),
        ("127.0.0.1", -1, True, "certificate has expired"),
        ("127.0.0.2", 2, True, "IP address mismatch"),
        ("redis.test", 2, True, "IP address mismatch"),
    ],
)
async def test_a_wrong_certificate_is_told_of(
    start: Any,
    tmp_path: Path,
    host: str,
    days: int,
    ours: bool,
    says: str,
) -> None:
    authority, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    port = start(authority.certify(host, days))
    with capture_logs() as told:
        assert not await answers(target(port, (authority if ours else other).file))
    (why,) = {each["why"] for each in told}
    assert "its certificate is not accepted" in why
    assert says in why


async def test_who_speaks_no_tls_is_told_of(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    server.start("--port", str(port))
    try:
        with capture_logs() as told:
            assert not await answers(target(port, None))
        assert [each["event"] for each in told] == ["nodes share nothing: Redis does not answer"]
        assert await answers(RedisTarget("", "127.0.0.1", port, 0))
    finally:
        server.close()
