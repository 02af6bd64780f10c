"""Players behind the local proxy: what they have in store, and so which networks they need now."""
