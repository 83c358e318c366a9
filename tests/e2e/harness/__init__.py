"""Real engine processes on a real database, workflows of mixed shapes, and what kills them."""
