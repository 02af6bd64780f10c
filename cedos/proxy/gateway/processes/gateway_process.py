"""One of the processes of a gateway."""

import socket

from cedos.kernel.process import with_parent
from cedos.proxy.gateway.processes.figures_board import FiguresBoard
from cedos.proxy.gateway.processes.process_place import ProcessPlace
from cedos.session.sockets.sibling_processes import SiblingProcesses


class GatewayProcess:
    """This process's number, its siblings, and their board."""

    def __init__(self, place: ProcessPlace) -> None:
        with_parent.end_with_parent(place.parent)
        self.number = place.number
        self.siblings = SiblingProcesses(
            place.number,
            [socket.socket(fileno=each) for each in place.ways],
            socket.socket(fileno=place.mine),
        )
        self.board = FiguresBoard(place.board, len(place.ways))
        self.board.begins(place.number)
        self.listening = socket.socket(fileno=place.listening)
