"""The edge of every command: arguments, streams, files, errors."""
