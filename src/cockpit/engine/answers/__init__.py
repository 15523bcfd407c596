"""Answers to what was asked of a step: requests sorted, tables joined, numbers on their way to the host."""
