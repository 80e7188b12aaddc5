"""Certificates of a finished run: for every client and for the federation, with their premises."""
