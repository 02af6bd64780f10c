"""A form with one file in it (`multipart/form-data`, RFC 7578), as browsers send it. Pure."""

from collections.abc import Sequence


def framing(
    boundary: str,
    field: str,
    file_name: str,
    content_type: str,
    values: Sequence[tuple[str, str]] = (),
) -> tuple[bytes, bytes]:
    """What stands before the file's bytes, and behind them; `values`: the form's other fields."""
    before = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{_escaped(name)}"\r\n\r\n{value}\r\n'
        for name, value in values
    )
    before += (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{_escaped(field)}";'
        f' filename="{_escaped(file_name)}"\r\nContent-Type: {content_type}\r\n\r\n'
    )
    return before.encode(errors="surrogateescape"), f"\r\n--{boundary}--\r\n".encode()


def _escaped(name: str) -> str:
    """As browsers do it (WHATWG HTML, 4.10.21.8)."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
