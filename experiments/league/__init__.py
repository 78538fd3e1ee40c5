"""Every policy on every load, tuned and judged alike: `servelab league`."""
