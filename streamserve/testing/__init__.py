"""The shipped test kit: in-memory log, manual clock, simulator, law checks."""
