"""What ``cockpit demo`` starts: a small training, watched by every instrument, and what they say about it."""
