"""The demo: real images through a real Kafka, five models, two of them in trouble, and what the system makes of it.

    python -m examples.demo --seconds 90          (or: make demo)

It uses streamserve as a stranger would: `streamserve up` as a process of its own, requests and labels by
confluent-kafka, and everything it reports is read back from the topics.
"""
