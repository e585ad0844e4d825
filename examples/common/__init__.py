"""What the demos share: the app as a child process, a client that knows nothing of streamserve, the command line."""
