"""The node side: touches GPUs and enforces targets; it refuses to know planners, the database or the API's insides."""
