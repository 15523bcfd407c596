"""The graph of a forward pass read and derived, twice where need be: by autograd, or node by node by hand."""
