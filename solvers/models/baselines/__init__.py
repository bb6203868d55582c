"""Plain models to be beaten: constant slowdown, matrix factorisation, random forest, linear interference."""
