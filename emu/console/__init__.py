"""What people see of long work: tables, progress, help."""
