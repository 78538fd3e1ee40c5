"""KV blocks: who takes, keeps, caches, reserves and frees them."""
