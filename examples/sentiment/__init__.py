"""Texts of four domains through a real Kafka: learnt states by context, beside the same policy without."""
