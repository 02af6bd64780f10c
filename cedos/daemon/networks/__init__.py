"""The networks of this host as the daemon sees them: observed, probed, noticed when silent."""
