"""What the bench of sessions is made of: two processes that do as they are told, and measure."""
