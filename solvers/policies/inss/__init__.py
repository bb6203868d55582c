"""InSS: batches by bisection first, placement and shares by a knapsack only where that fails."""
