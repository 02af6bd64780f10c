"""How often what happened between the nodes of a gateway."""

from dataclasses import dataclass


@dataclass(slots=True)
class NodeFigures:
    """Of one node's sessions.

    `written` to Redis; `taken` from other nodes, `given` to them; `kept_back`: too many to be shared;
    `refused`: values that no node wrote. Connections: `passed_on` to other nodes, `passed_in` by them;
    `strangers` at the port that is for nodes.
    """

    written: int = 0
    taken: int = 0
    given: int = 0
    refused: int = 0
    kept_back: int = 0
    passed_on: int = 0
    passed_in: int = 0
    strangers: int = 0
