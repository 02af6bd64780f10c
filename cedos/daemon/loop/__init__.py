"""The daemon's loop: packets, flow events and samples of flows come in, decisions go out."""
