"""How often what happened between the nodes of a gateway."""

from dataclasses import dataclass


@dataclass(slots=True)
class NodeFigures:
    """Of one node's sessions.

    `written` to Redis; `taken` from other nodes, `given` to them; `kept_back`: too many to be shared;
    `refused`: values that no node wrote.
    """

    written: int = 0
    taken: int = 0
    given: int = 0
    refused: int = 0
    kept_back: int = 0
