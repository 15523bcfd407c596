"""What ``cockpit run`` starts: an unmodified training script, watched."""
