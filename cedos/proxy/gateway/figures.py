"""What a gateway shows of itself."""

from typing import NamedTuple


class GatewayFigures(NamedTuple):
    """Now: `sessions`, `connections`, `held_bytes`, `nodes_away`, `passed_on`; the rest since it began.

    Up is from clients. `nodes_away`: processes for which Redis is. Clients' own connections: `passed_on`
    to other nodes now, `connections_to_nodes` ever, `connections_from_nodes` that others passed on;
    `node_strangers`: no nodes, at the port for nodes.
    """

    sessions: int = 0
    connections: int = 0
    held_bytes: int = 0
    sessions_opened: int = 0
    sessions_taken_over: int = 0
    connections_opened: int = 0
    connections_refused: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    nodes_away: int = 0
    sessions_from_nodes: int = 0
    sessions_to_nodes: int = 0
    node_values_refused: int = 0
    passed_on: int = 0
    connections_to_nodes: int = 0
    connections_from_nodes: int = 0
    node_strangers: int = 0

    def counted(self) -> "GatewayFigures":
        """Without what is only now: what stays true when its process is gone."""
        return self._replace(sessions=0, connections=0, held_bytes=0, nodes_away=0, passed_on=0)


def total(figures: "list[GatewayFigures]") -> GatewayFigures:
    """Of several processes."""
    return GatewayFigures(*map(sum, zip(*figures, strict=True)))
