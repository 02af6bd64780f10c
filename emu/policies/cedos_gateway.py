"""cedos with a gateway: any program's connections, MPTCP or not, over one session that survives.

The daemon is told nothing of the place (`cedos_blind`); programs are told of the proxy.
"""

from contextlib import ExitStack

from emu.policies.base import Stage
from emu.policies.cedos_blind import CedosBlind
from emu.testbed.programs.gateway import Gatewayed


class CedosGateway(CedosBlind):
    name = "cedos-gateway"

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
