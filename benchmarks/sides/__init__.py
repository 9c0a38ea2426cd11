"""Each module runs one side; it is imported only in that side's environment."""
