"""What people see after a run: figures, and one page that opens without a network."""
