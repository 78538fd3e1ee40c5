"""What requests got over time: their tokens, tenants and readers."""
