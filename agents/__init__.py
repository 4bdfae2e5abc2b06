"""Reference fleets. No wheel ships them: they run from a checkout or an image."""
