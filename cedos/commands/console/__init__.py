"""What commands share: programs of their own, help pages, progress, rendering."""
