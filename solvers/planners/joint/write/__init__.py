"""From seats to a plan."""
