"""The order of events, and the questions to the policy."""
