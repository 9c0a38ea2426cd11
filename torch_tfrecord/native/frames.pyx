"""frames: to come."""
