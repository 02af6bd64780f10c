"""Budgets of this host: what is metered, what it is worth, and where a hard one is kept."""
