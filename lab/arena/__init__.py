"""The arena: scenario files, runs side by side over cores, their results, the report and the claims."""
