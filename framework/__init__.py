"""The simulator: mechanisms of LLM serving, without any named system."""
