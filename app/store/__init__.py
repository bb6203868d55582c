"""All SQL and everything SQLAlchemy: one repository per noun, whose functions take a session first and never commit."""
