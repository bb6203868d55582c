"""Real processes, killed and frozen at random moments while others write: nothing acknowledged is lost or doubled."""
