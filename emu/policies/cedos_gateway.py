"""cedos with a gateway: all connections of unmodified programs share one session that survives.

Programs reach the local proxy through the usual environment variables.
"""

from contextlib import ExitStack

from emu.policies.base import Stage
from emu.policies.cedos import Cedos
from emu.testbed.programs.gateway import Gatewayed


class CedosGateway(Cedos):
    name = "cedos-gateway"
    title = "cedos with a gateway"

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()

    def start(self, stage: Stage) -> None:
        super().start(stage)
        directory = stage.directory.resolve()
        gateway = Gatewayed(stage.laptop, directory, {"CEDOS_RUNTIME_DIR": str(directory / "run")})
        self._stack.enter_context(gateway)
        stage.variables.update(gateway.environment)

    def stop(self) -> None:
        self._stack.close()
        super().stop()


policy = CedosGateway
