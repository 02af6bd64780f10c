"""Programs that know of no proxy: chosen users' connections are led to the local proxy."""
