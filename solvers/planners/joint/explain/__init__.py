"""Why a plan is as it is: prices, candidates, and what is missing for those left out."""
