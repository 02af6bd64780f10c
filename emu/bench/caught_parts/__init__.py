"""The parts of the bench of caught connections."""
