"""What requests got over time: their tokens, tenants and readers, and those that no figure counts."""
