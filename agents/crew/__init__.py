"""Worker processes: started, asked, measured, drained and ended.

`open_crew` gives the crew of a host. The agent may die at any moment; its workers go on, and the next agent finds them.
"""

from agents.crew.crew import HostCrew, open_crew
from agents.crew.member import CrewOptions
from agents.crew.users import users_of

__all__ = ["CrewOptions", "HostCrew", "open_crew", "users_of"]
