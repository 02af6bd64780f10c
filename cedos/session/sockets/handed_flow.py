"""A living session on its way from one process to the next."""

from typing import NamedTuple


class HandedFlow(NamedTuple):
    """Secret: `credentials` prove the session (`Credentials`), `session` is what `living` packed."""

    credentials: bytes
    session: bytes
