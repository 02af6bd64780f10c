"""The flows of this host by netlink events, and what they tell of their networks."""
