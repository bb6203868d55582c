"""Routes for gateways: what the API says of services becomes HAProxy backends and nginx upstreams, and stays so."""
