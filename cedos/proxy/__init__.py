"""The relay: MPTCP towards the client, plain TCP towards the origin (Delphi, section 8)."""
