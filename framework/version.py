"""The version of the project, which runs are stamped with (docs/versions.md)."""

VERSION = "0.2.0"
