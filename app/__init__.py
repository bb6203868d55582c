"""The shell: owns time, PostgreSQL, HTTP and processes; it carries decisions out and refuses to take them."""
