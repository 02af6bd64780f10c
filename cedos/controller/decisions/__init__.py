"""The decisions on new connections and living ones."""
