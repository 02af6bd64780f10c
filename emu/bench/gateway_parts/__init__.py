"""Parts of the bench of the gateway beside downloads, a matter a file."""
