"""Programs that do the same job as streamserve, each in a process of its own."""
