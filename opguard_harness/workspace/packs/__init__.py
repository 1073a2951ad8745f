"""A case as one file that somebody else can open: what goes into it, how it is written, checked and opened."""
