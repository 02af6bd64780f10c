"""What the daemon keeps on disk: history, usage, and the files of budgets, radios and predictors."""
