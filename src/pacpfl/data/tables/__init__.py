"""People's own tables: files, what their columns mean, and the federation they make."""
