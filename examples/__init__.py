"""Configurations that `streamserve up` runs, and the demo."""
