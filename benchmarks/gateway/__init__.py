"""What hand-overs behind a real gateway are tried with: the gateway, load, and a node that changes shares."""
