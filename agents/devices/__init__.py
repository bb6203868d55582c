"""Device back ends behind one honest interface; vendor errors and handles never leave this room."""
