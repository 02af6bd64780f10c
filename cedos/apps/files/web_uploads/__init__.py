"""Uploads to ordinary web servers that a gateway puts together first (Cedos' D2Prox, III-F)."""
