"""What the locks bring along: looked at without asking anybody (`make audit`), and written down (`make sbom`)."""
