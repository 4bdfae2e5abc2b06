"""What a request adds up to and what follows from it: the state, the rules, the verdict, the consequences."""
