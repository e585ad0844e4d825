"""`streamserve up`: a broker if none is named, the topics, and every role as a child process, kept alive and shown."""
