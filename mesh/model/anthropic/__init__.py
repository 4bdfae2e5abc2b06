"""Claude behind the port, through the vendor's own SDK."""
