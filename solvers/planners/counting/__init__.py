"""Problems of counts, how many of each and never which one, and solving them with whatever engine is at hand."""
