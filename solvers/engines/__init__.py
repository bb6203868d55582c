"""The only room that knows a solver library by name; solver objects never leave it, statuses and values do."""
