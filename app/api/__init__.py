"""The HTTP edge: routers, wire schemas, authentication, problems, the doorbell. Decides nothing about the fleet;
services do.
"""
