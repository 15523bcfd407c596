"""Sums, counts, lengths and products of tensors, whatever they mean; in which precision, and by which library."""
