"""What this host can and cannot do (`cedos doctor`). Only reads: nothing is changed."""
