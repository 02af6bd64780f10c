"""The receiving half: extents in any order, acknowledged, delivered."""
