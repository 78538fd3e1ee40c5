"""A local page over a results store: many runs filtered, ranked and compared, and what runs now."""
