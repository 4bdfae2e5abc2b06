"""The fleet file, and what is laid out on the bus because of it."""

FILE_NAME = "mesh.toml"
