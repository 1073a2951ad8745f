"""Run two sides, one after the other, under observation; judge their traces; answer."""
