"""What happens next, and what the policy is asked at it."""
