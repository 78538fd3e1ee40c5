"""What requests received over time: tokens, tenants, readers, faults, and the requests that no figure counts."""
