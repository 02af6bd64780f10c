"""The papers' experiments: scenarios as TOML files, and the code that carries them out."""
