"""The agents of this fleet. The fleet file, mesh.toml, says what each of them may do."""
