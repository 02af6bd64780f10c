"""What happens again and again: packets, flow events and looks at flows come in, decisions go out."""
