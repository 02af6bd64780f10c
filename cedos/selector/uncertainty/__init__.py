"""What predictors do not know, and what follows for a choice: Meatballs (dissertation, chapter 4)."""
