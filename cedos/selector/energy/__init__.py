"""What transfers cost in joules: constant powers, and radios with states and tails."""
