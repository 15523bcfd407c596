"""What ``cockpit bench`` starts: the cost of watching, measured on the user's own model and machine."""
