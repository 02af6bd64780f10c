"""Parts of the bench of sessions: two processes that carry out commands and measure."""
