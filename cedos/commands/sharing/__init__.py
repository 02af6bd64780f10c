"""The commands of a host that shares its network, or uses those of others."""
