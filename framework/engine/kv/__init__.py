"""KV blocks: allocation, caching, reserves, sharing and frees."""
