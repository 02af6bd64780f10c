"""What the bench of the gateway measures beside downloads, a matter a file."""
