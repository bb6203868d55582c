"""From counts of device contents to named devices."""
