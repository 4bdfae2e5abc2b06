"""Read models: what a request's events tell people. Nothing is decided by them."""
