"""What was sent over a network and has no answer yet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sent:
    """A transfer that began over `network` and has been waited for since, `waited_s` so far.

    Of the times that were expected only the longer ones are still possible, and sending over another
    network as well can begin now (dissertation, 4.3.4). What the first copy's bytes cost is spent
    whatever is chosen.
    """

    network: str
    waited_s: float
