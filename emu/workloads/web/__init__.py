"""Web pages and video in a real browser: sites that we generate, and what a person waits for."""
