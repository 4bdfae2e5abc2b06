"""Read models, which show a request's events to people. No decision uses them."""
