"""From a joint problem to a layout: generated patterns, a bound, first aid, trimming and repair."""
