"""The end at the programs: they connect here, and what they say goes through the gateway."""
