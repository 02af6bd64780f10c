"""A stand-in for the system's message bus."""

from collections.abc import Mapping, Sequence
from typing import Any

from cedos.host.monitor.bus import BusError, SystemBus


class PlayedBus(SystemBus):
    """Answers from a table, by an object's path or by a method's name; what is missing is absent."""

    def __init__(self, answers: Mapping[str, list[Any]]) -> None:
        super().__init__("unix:path=/nowhere")
        self.answers = dict(answers)
        self.calls: list[tuple[str, Sequence[object]]] = []
        self.watched: list[str] = []

    async def call(
        self,
        service: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[object] = (),
    ) -> list[Any]:
        self.calls.append((member, body))
        answer = self.answers.get(path, self.answers.get(member))
        if answer is None:
            raise BusError(f"{service} {member}: absent")
        return answer

    async def watch(self, service: str, path: str, interface: str, changed: Any) -> None:
        self.watched.append(path)
