"""Where files go that the gateway is to send on to a web server, and as what."""

import hashlib
import json
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import click

from cedos.commands.console.option_types import Parsed
from cedos.errors import TransferError
from cedos.files.messages import WebUpload
from cedos.files.multipart import framing
from cedos.files.upload_body import UploadBody

_MOST_HEADERS: Final = 16_384
_MOST_FIELDS: Final = 32
_LONGEST_VALUE: Final = 8_192

Method = Literal["PUT", "POST", "PATCH"]


def _headers(text: str) -> list[tuple[str, str]]:
    lines = [text]
    if text.startswith("@"):
        try:
            lines = Path(text[1:]).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{text[1:]} cannot be read: {error}") from None
    found = []
    for line in filter(None, map(str.strip, lines)):
        name, colon, value = line.partition(":")
        token = name and all(each.isalnum() or each in "!#$%&'*+-.^_`|~" for each in name)
        good = name.isascii() and line.isprintable() and len(line) <= _LONGEST_VALUE
        if not colon or not token or not good:
            raise ValueError("a header such as 'Authorization: Bearer abc' would be right")
        found.append((name, value.strip()))
    return found


def _form_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not name=value")
    return name, value


HEADERS: Final = Parsed("header", _headers)
"""`Name: value`; `@FILE`: a file of such lines, so that secrets are in no list of processes."""

FORM_VALUE: Final = Parsed("value", _form_value)


@dataclass(frozen=True, slots=True)
class WebTarget:
    """`url` of one file, or with a slash at its end of a folder (not where a form is sent).

    `form`: the field of a form that the file goes as, with the other `values`; else it is the body.
    """

    url: str
    method: Method
    headers: list[tuple[str, str]]
    form: str | None
    values: tuple[tuple[str, str], ...]
    keep_s: float
    again: bool

    def check(self, several: bool) -> None:
        """Errors: UsageError."""
        if sum(len(name) + len(value) for name, value in self.headers) > _MOST_HEADERS:
            raise click.UsageError(f"headers of {_MOST_HEADERS} bytes are the most")
        if len(self.headers) >= _MOST_FIELDS:
            raise click.UsageError(f"{_MOST_FIELDS} headers are the most")
        if self.values and self.form is None:
            raise click.UsageError("--form-value goes with --form FIELD")
        if self.method == "PUT" and self.form is None and several and not self.url.endswith("/"):
            raise click.UsageError(f"{self.url} is no folder; {self.url}/ would be right")

    def of(self, path: str) -> str:
        """The URL for a file of that path below the folder."""
        whole = self.method != "PUT" or not self.url.endswith("/")
        return self.url if whole else self.url + quote(path, errors="surrogateescape")

    def prepared(self, source: Path, url: str) -> tuple[UploadBody, WebUpload]:
        """What is sent of a file, and as what. TransferError: it cannot be read.

        It has the same id whenever the same state of the file is sent to the same place in the same way.
        """
        body = UploadBody(source)
        told = [url, self.method, self.form, self.values, str(source.absolute()), str(body.version)]
        name = hashlib.sha256(json.dumps(told).encode(errors="surrogateescape")).hexdigest()[:32]
        kind = mimetypes.guess_type(source.name)[0] or "application/octet-stream"
        if self.form is not None:
            body.close()
            boundary = f"cedos-{name}"
            body = UploadBody(source, *framing(boundary, self.form, source.name, kind, self.values))
            kind = f"multipart/form-data; boundary={boundary}"
        headers = list(self.headers)
        if not any(each.lower() == "content-type" for each, _ in headers):
            headers.append(("Content-Type", kind))
        elif self.form is not None:
            body.close()
            raise TransferError("a form has a Content-Type of its own; without --header for it")
        return body, WebUpload(name, self.method, headers, self.keep_s, self.again)
