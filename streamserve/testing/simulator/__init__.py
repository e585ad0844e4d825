"""A whole app in one thread: real services and stages on a simulated log, under one seeded scheduler."""
