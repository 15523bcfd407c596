"""Schedules, configurations, and what is known of optimizers."""
