"""Debian's own Dovecot with a mailbox of messages, in a namespace: what inboxes are fetched from."""

import os
import pwd
import random
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace
from emu.testbed.services import Service, Started, accepts

PORT = 143
USER, PASSWORD = "reader", "not-a-secret"
_START_TIMEOUT_S = 10.0
_OWNER = "nobody"

# Everything that Dovecot would keep in the host's own folders is kept in this one.
_CONFIG = """
base_dir = {directory}/run
state_dir = {directory}/state
log_path = {directory}/dovecot.log
instance_name = {name}
protocols = imap
listen = {address}
ssl = no
disable_plaintext_auth = no
auth_mechanisms = plain
mail_location = maildir:{directory}/mail
first_valid_uid = 1
first_valid_gid = 1
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={directory}
}}
service imap-login {{
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
namespace inbox {{
  inbox = yes
}}
"""


class MailServer(Started):
    """Dovecot on one address of a namespace, as a `with` block.

    `directory` is its own, and readable by all on the way to it; the messages, oldest first, are of just
    `sizes_bytes`, and drawn from `seed`.
    """

    def __init__(
        self,
        namespace: Namespace,
        directory: Path,
        address: str,
        sizes_bytes: Sequence[int],
        *,
        port: int = PORT,
        seed: int = 1,
    ) -> None:
        self._namespace = namespace
        self.directory = directory
        self.address = address
        self.port = port
        self._sizes = sizes_bytes
        self._seed = seed
        self._service: Service | None = None

    def close(self) -> None:
        if self._service is not None:
            self._service.close()

    def text(self, uid: int) -> bytes:
        """Return a message as it was delivered, with the line ends that IMAP has."""
        return next((self.directory / "mail" / "cur").glob(f"{uid:08d}.*")).read_bytes()

    def _start(self) -> None:
        if shutil.which("dovecot") is None:
            raise EmulationError("dovecot is not installed; ./run installs it")
        owner = pwd.getpwnam(_OWNER)
        self.directory.mkdir(parents=True, exist_ok=True)
        for part in ("run", "state"):
            (self.directory / part).mkdir(exist_ok=True)
        self._deliver(owner.pw_uid, owner.pw_gid)
        config = self.directory / "dovecot.conf"
        config.write_text(
            _CONFIG.format(
                directory=self.directory,
                name=f"cedos-{os.getpid()}-{self.directory.name}",
                address=self.address,
                port=self.port,
                password=PASSWORD,
                uid=owner.pw_uid,
                gid=owner.pw_gid,
            )
        )
        self._service = Service(
            self._namespace,
            *("dovecot", "-F", "-c", str(config)),
            output=self.directory / "dovecot.out",
            logs=(self.directory / "dovecot.log",),
        )
        self._service.wait_for(
            lambda: accepts(self._namespace, self.address, self.port, b"* OK"), _START_TIMEOUT_S
        )

    def _deliver(self, uid: int, gid: int) -> None:
        mail = self.directory / "mail"
        for part in ("cur", "new", "tmp"):
            (mail / part).mkdir(parents=True, exist_ok=True)
        drawn = random.Random(self._seed)
        first = datetime(2026, 1, 1, tzinfo=UTC)
        for number, size in enumerate(self._sizes, start=1):
            content = message_of(size, number, first + timedelta(hours=number), drawn)
            # Maildir's `S=` and `W=`: the size is known without reading the file.
            name = f"{number:08d}.M{number}.mail,S={len(content)},W={len(content)}:2,"
            (mail / "cur" / name).write_bytes(content)
        for path in (mail, *mail.rglob("*")):
            os.chown(path, uid, gid)
        os.chown(self.directory, uid, gid)


def message_of(size_bytes: int, number: int, date: datetime, drawn: random.Random) -> bytes:
    """Return a message of just this size, if it can be so small; lines end as in IMAP."""
    message = EmailMessage()
    message["From"], message["To"] = "writer@example.org", "reader@example.org"
    message["Subject"] = f"Message {number}"
    message["Date"] = format_datetime(date)
    message["Message-ID"] = f"<{number}@example.org>"
    head = bytes(message).replace(b"\n", b"\r\n").rstrip(b"\r\n") + b"\r\n\r\n"
    left = size_bytes - len(head)
    body = bytearray()
    while len(body) < left:
        body += drawn.randbytes(36).hex().encode() + b"\r\n"
    del body[max(left, 0) :]
    # A cut in the middle of a line end would be mended by the server.
    if body.endswith(b"\r"):
        body[-1:] = b"."
    return head + bytes(body)
