"""Steps recorded and replayed, so that they take a few launches or calls."""
