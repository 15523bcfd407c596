"""What is seen of a training from outside: calls of layers, output gradients, weights of examples, hooks."""
