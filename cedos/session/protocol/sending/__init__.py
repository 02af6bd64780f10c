"""The sending half: queues, replay, flow control, what is in flight on which path."""
