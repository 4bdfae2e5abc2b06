"""The pure domain: a request's state, the rules, the verdict and its consequences."""
