"""Quantities, one file each; the folder is the list."""
