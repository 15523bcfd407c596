"""The stages of a step: its backward passes watched, what is seen of it, its end."""
