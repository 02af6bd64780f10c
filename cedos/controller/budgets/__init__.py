"""Budgets: their use and prices, the choices that teach them, and the hard ones."""
