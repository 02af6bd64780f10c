"""The daemon's files: history, usage, budgets, radios and predictors."""
