"""Copies of KV between instances: transfers, link sharing, live migration."""
