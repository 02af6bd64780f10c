"""Exchanges of a few kilobytes over several networks: the policy, and who carries them (4.5.5.1)."""
