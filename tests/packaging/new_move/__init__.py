"""A made-up move: what its author would add to the tree, and what must then know it."""
