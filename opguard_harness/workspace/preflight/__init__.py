"""A look before a long run: the first steps of both sides, in private copies that are thrown away."""
