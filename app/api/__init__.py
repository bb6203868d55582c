"""The HTTP edge: routes, wire schemas and problems; it refuses business rules, which live in the services."""
