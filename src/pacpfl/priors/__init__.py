"""Families of priors: what one particle means, and what a client does with it."""
