"""The stages: one per role, each pure."""
