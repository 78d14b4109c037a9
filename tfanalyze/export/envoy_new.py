"""A new Envoy bootstrap: one listener, one route a class header, one cluster with a locality a site."""

from __future__ import annotations

from typing import Any

HTTP = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


def bootstrap(
    first_class: str, header: str, localities: list[tuple[str, str, list[tuple[str, int]]]]
) -> dict[str, Any]:
    """The bootstrap without weights, breakers and priorities, which the policy fills in."""
    return {
        "admin": {"address": _address("127.0.0.1", 9901)},
        "static_resources": {
            "listeners": [_listener(first_class, header)],
            "clusters": [_cluster(localities)],
        },
    }


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _listener(first_class: str, header: str) -> dict[str, Any]:
    match = {"prefix": "/", "headers": [{"name": header, "string_match": {"exact": first_class}}]}
    routes = [
        {"match": match, "route": {"cluster": "fleet", "priority": "HIGH", "timeout": "0s"}},
        {"match": {"prefix": "/"}, "route": {"cluster": "fleet", "priority": "DEFAULT", "timeout": "0s"}},
    ]
    manager = {
        "@type": HTTP,
        "stat_prefix": "gateway",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER}}],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {"name": "requests", "address": _address("0.0.0.0", 8080), "filter_chains": [chain]}  # noqa: S104


def _cluster(localities: list[tuple[str, str, list[tuple[str, int]]]]) -> dict[str, Any]:
    endpoints = [
        {
            "locality": {"region": region, "zone": site},
            "load_balancing_weight": 1,
            "lb_endpoints": [{"endpoint": {"address": _address(host, port)}} for host, port in hosts],
        }
        for region, site, hosts in localities
    ]
    health = {
        "timeout": "1s", "interval": "2s", "no_traffic_interval": "2s", "unhealthy_threshold": 2, "healthy_threshold": 1,
        "http_health_check": {"path": "/health"},
    }  # fmt: skip
    return {
        "name": "fleet",
        "type": "STRICT_DNS",
        "connect_timeout": "2s",
        "lb_policy": "LEAST_REQUEST",
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}, "locality_weighted_lb_config": {}},
        "health_checks": [health],
        "load_assignment": {"cluster_name": "fleet", "endpoints": endpoints},
    }
