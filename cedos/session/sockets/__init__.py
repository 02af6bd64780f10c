"""The programs' end of sessions: connections and listeners."""
