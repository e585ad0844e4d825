"""The shell: everything that touches a broker, a clock or a socket."""
