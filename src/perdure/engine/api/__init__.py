"""What can be asked of an engine, one module per noun."""
