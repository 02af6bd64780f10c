"""What a process of cedos holds, asked from outside: what a step of its memory is made of."""
