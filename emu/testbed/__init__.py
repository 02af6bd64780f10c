"""The emulated laptop: namespaces, phones, genuine Mahimahi, servers."""
