"""The contract: topics, their names, and the types of their values, declared once.

The folder `topics/` at the top of the repository is generated from here (`python -m streamserve.topics.publish`).
This package imports nothing of streamserve, so that another program may take it alone.
"""

from streamserve.topics.catalogue import TOPICS, Header, Topic, TopicSpec, catalogue, spec_of
from streamserve.topics.names import IllegalName, Kind, TopicName, check_app, parse_topic_name, topic_name

__all__ = [
    "TOPICS",
    "Header",
    "IllegalName",
    "Kind",
    "Topic",
    "TopicName",
    "TopicSpec",
    "catalogue",
    "check_app",
    "parse_topic_name",
    "spec_of",
    "topic_name",
]
