"""D2BufMgr's figures: a video through a ride, its stalls, and metered bytes against a clairvoyant's."""
