"""Requests that wait before they are routed (SEMANTICS.md: Gateway)."""
