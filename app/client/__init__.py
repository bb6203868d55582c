"""What clients keep in files: where control planes are, and documents to declare. `headroom_client` calls them."""
