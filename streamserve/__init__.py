"""streamserve: machine-learning predictions over Kafka."""
