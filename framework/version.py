"""The version of the project, which each run records (docs/versions.md)."""

VERSION = "0.2.0"
