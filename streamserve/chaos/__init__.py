"""Faults done on purpose to a running app, under load, and what the log says of them afterwards.

Real processes and a real Kafka of our own in a folder of its own: nothing of a user's cluster is touched. A fault
(`faults`) is written once; `streamserve chaos` and `tests/acceptance/faults` run the same ones. The load comes from a
client that shares no code with streamserve (`load`), and everything is judged from the predictions topic (`account`).
"""
