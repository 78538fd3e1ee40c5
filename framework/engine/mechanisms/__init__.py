"""Optional mechanisms, each with its options and its compiled part; all are off by default."""
