"""Places: traces with their indicators, checked, drawn, and synthesised."""
