"""Individual gradients in their cheapest form, and every way to reduce them."""
