"""The rules of the routes by name: every router states one of these for each operation, and a test walks them all."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from app.api.auth import Rule, access
from app.services.declared.tokens import Actor
from app.store.tokens import Purpose, Role

CLUSTER_READ = Rule(least=Role.VIEWER)
SHARED_READ = Rule(least=Role.VIEWER, shared=True)
CLUSTER_WRITE = Rule(least=Role.OPERATOR)
PROJECT_WRITE = Rule(least=Role.OPERATOR, shared=True)
CLUSTER_ADMIN = Rule(least=Role.ADMIN)
COST_READ = Rule(least=Role.VIEWER, shared=True, reporter=True)
ROUTES_READ = Rule(least=Role.VIEWER, shared=True, agents=(Purpose.NODE, Purpose.GATEWAY))
LISTEN = Rule(least=Role.VIEWER, shared=True, agents=(Purpose.NODE, Purpose.GATEWAY))
JOIN = Rule(agents=(Purpose.JOIN, Purpose.NODE))
NODE_AGENT = Rule(agents=(Purpose.NODE,))
EDGE_WRITE = Rule(least=Role.OPERATOR, agents=(Purpose.GATEWAY,))

ClusterReader = Annotated[Actor, Depends(access(CLUSTER_READ))]
SharedReader = Annotated[Actor, Depends(access(SHARED_READ))]
ClusterWriter = Annotated[Actor, Depends(access(CLUSTER_WRITE))]
ClusterAdmin = Annotated[Actor, Depends(access(CLUSTER_ADMIN))]
CostReader = Annotated[Actor, Depends(access(COST_READ))]
RoutesReader = Annotated[Actor, Depends(access(ROUTES_READ))]
DoorbellListener = Annotated[Actor, Depends(access(LISTEN))]
Joiner = Annotated[Actor, Depends(access(JOIN))]
NodeAgent = Annotated[Actor, Depends(access(NODE_AGENT))]
EdgeReporter = Annotated[Actor, Depends(access(EDGE_WRITE))]
