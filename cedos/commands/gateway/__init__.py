"""Subcommands that carry other programs' connections: the laptop's side and the gateway's."""
