"""What the emulated laptop does with its networks: single measured transfers and mixed loads."""
