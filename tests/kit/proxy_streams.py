"""A session for streams that are tried alone."""


class Anything:
    """A session that takes everything."""

    def put(self, stream: object, data: object, label: object, *, ordered: object) -> None:
        pass

    def try_put(self, stream: object, head: object, data: object, label: object) -> bool:
        return True

    def send_packet(self, data: bytes, lifetime_s: float) -> None:
        pass

    def forget(self, number: int) -> None:
        pass
