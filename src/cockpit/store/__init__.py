"""The run store: one SQLite file per run, written by one thread, read by anyone, without torch."""
