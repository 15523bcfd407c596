"""By which way each individual gradient is had on a kind of graph: formulas, their proof, the exact fallback."""
