"""Between daemons: datagrams, requests and folders, and the messages about queries that they carry."""
