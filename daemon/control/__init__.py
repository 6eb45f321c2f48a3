"""The control socket: what this daemon can be asked on its own host, by the command line or any program."""
