#!/bin/sh
# Writes .env beside docker-compose.yml with fresh random secrets. An existing .env is kept: it holds the keys to existing volumes.
set -eu
cd "$(dirname "$0")/.."
if [ -e .env ]; then
  echo ".env exists already; remove it (and the volumes) to start over" >&2
  exit 0
fi
secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
umask 077
cat >.env <<CONF
POSTGRES_PASSWORD=$(secret)
HEADROOM_ADMIN_TOKEN=hr_$(secret)
HEADROOM_JOIN_TOKEN=hr_$(secret)
HEADROOM_GATEWAY_TOKEN=hr_$(secret)
CONF
echo "wrote .env; now: docker compose up --build"
