"""OLTunes: tasks of mixed urgency put on GPUs in groups, by a scheduler that learns as it goes."""
