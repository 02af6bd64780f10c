"""Budgets tried over whole months in seconds: people whose habits shift, and the product's keepers."""
