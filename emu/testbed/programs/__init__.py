"""What runs inside the testbed: servers, the relay, the daemon under test, and who watches them."""
