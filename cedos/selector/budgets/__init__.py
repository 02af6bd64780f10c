"""Budgets as prices: supplies, periods, controllers, and hard ones."""
