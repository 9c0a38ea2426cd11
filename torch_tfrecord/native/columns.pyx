"""columns: to come."""
