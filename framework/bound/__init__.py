"""Upper bounds on goodput."""
