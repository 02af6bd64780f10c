"""What one session may take of this process, and keep its peer waiting."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one session may use. Windows are what the peer may send before the application has read it.

    Without `probes`, paths that carry nothing are not measured.
    """

    send_bytes: int = 16 * 1024 * 1024
    stream_window: int = 8 * 1024 * 1024
    irob_window: int = 16 * 1024 * 1024
    irob_bytes: int = 4 * 1024 * 1024
    acknowledge_bytes: int = 256 * 1024
    acknowledge_delay_s: float = 0.025
    keep_alive_s: int = 30 * 86_400
    drain_s: float = 10.0
    probes: bool = True
