"""Evaluation: what another policy would have earned, and how sure one can be of an answer. Pure."""
