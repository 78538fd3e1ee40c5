"""The edge of every command: words, streams, files, errors."""
