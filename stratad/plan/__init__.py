"""Around the pure `planner`: what it is given, how plans are kept, published and logged."""
