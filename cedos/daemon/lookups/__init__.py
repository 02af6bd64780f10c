"""Look-ups that stay unanswered are repeated over another network, for any program."""
