"""The answer of ``compare``: its JSON schema, the validator, and turning values into plain JSON."""
