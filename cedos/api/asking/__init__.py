"""Programs that ask the daemon beside their data: nobody waits, and without one they go on."""
