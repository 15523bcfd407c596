"""The curvature of a step: products with the Hessian, eigenvalues, traces and diagonals."""
