"""All SQL and everything SQLAlchemy: repositories, one per noun, whose functions take a session first and never commit."""
