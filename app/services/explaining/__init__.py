"""Why a plan is as it is, in words and numbers."""
