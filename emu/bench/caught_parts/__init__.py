"""What the bench of caught connections is made of."""
