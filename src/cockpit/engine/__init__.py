"""The engine: torch in, statistics out; knows no quantity, store or plot."""
