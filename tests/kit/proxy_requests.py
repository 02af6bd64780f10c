"""Programs' requests to a proxy: CONNECT of HTTP (RFC 9110, 9.3.6), and of SOCKS 5 (RFC 1928)."""


def http_connect(port: int, host: str = "127.0.0.1") -> bytes:
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()


def socks_connect(port: int) -> bytes:
    """Return the greeting without a password, and a request for a port of 127.0.0.1."""
    return b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01" + port.to_bytes(2)
