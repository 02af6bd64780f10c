"""What only sessions can do: go by a gateway, and use one network more for a moment."""
